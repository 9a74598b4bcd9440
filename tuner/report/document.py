"""One self-contained HTML document: style, script, figures with their data, and Plotly itself.

In: title, sections, figures. Out: text. A content security policy in the head forbids every
request and every script but the two of the page, so that the file shows the same on a machine
without a network, and a hostile name in a study can run and reach nothing. Figures travel as JSON in
inert script elements; `assets/page.js` draws them in the light or dark theme.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Sequence

import plotly.graph_objects as go
import plotly.offline

from tuner.report import theme
from tuner.report.markup import Child, Markup, element, joined

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
"""Beside it, the scripts that may run: those whose digests it names. Styles stand in attributes, too."""


def render(*, title: str, head: Markup, sections: Sequence[tuple[str, str, Markup]]) -> str:
    """The whole document.

    Args:
        title: of the window.
        head: what stands above the sections: the answer.
        sections: (anchor, heading, content) in order; the first line of the page links to them.
    """
    scripts = [_normal(plotly.offline.get_plotlyjs()), _normal(_asset("page.js"))]
    links = [element("a", heading, href=f"#{anchor}") for anchor, heading, _ in sections]
    parts = [
        element("section", element("h2", heading), content, id=anchor)
        for anchor, heading, content in sections
    ]
    body = element(
        "body",
        element("nav", *links, aria_label="sections"),
        element("main", head, *parts),
        element("noscript", "The figures need JavaScript; tables and text do not."),
        _json("themes", {"light": theme.LIGHT, "dark": theme.DARK}),
        *map(_script, scripts),
    )
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_asset("page.css"))),
    )
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


def figure(
    drawn: go.Figure,
    *,
    name: str,
    title: str,
    caption: Child = None,
    has_heading: bool = True,
    is_wide: bool = False,
) -> Markup:
    """A figure with its heading and its caption.

    Args:
        drawn: what to draw; its own template is replaced by the reader's theme.
        name: unique in the document.
        title: heading, and what a screen reader says.
        caption: how to read it.
        has_heading: show the title above the figure.
        is_wide: keep a readable width on a narrow screen and scroll sideways instead.
    """
    data = json.loads(drawn.to_json())
    data["layout"].pop("template", None)
    plot = element(
        "div",
        id=name,
        class_="plot wide" if is_wide else "plot",
        role="img",
        aria_label=title,
        style=f"height:{data['layout'].get('height', 400)}px",
    )
    return element(
        "figure",
        element("h3", title) if has_heading else None,
        element("div", plot, class_="scroll"),
        element("figcaption", caption) if caption else None,
        _json(f"{name}-data", data),
    )


def _json(name: str, data: object) -> Markup:
    """Data in an inert script element; `<` becomes an escape, so nothing can end the element."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id=name)


def _script(text: str) -> Markup:
    return joined((Markup("\n<script>"), Markup(text), Markup("</script>\n")))


def _normal(script: str) -> str:
    """A script as a browser reads it, whose digest is taken of that."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    return f"\n{text}\n"


def _policy(scripts: Sequence[str]) -> str:
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    sources = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    return f"{POLICY}; script-src {' '.join(sources)}"


def _asset(name: str) -> str:
    folder = importlib.resources.files("tuner.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")
