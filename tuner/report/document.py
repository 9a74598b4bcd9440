"""A self-contained HTML document: style, script, figures with their data, and Plotly.

A content security policy forbids all requests, and all scripts except the page's two.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Sequence

import plotly.offline
from plotly.utils import PlotlyJSONEncoder

from tuner.report import theme
from tuner.report.markup import Child, Markup, element

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


Section = tuple[str, str, Markup]


def render(*, title: str, head: Markup, sections: Sequence[Section]) -> str:
    """Return the whole document.

    Args:
        title: title of the window.
        head: content above the sections.
        sections: sections that the top of the page links to.
    """
    scripts, policy = _scripts()
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
        *(Markup(f"\n<script>{script}</script>\n") for script in scripts),
    )
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_asset("page.css"))),
    )
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


def figure(
    drawn: theme.Figure,
    *,
    name: str,
    title: str,
    caption: Child = None,
    has_heading: bool = True,
    is_wide: bool = False,
) -> Markup:
    """Return a figure with heading and caption.

    Args:
        drawn: figure, to which the page adds the reader's theme.
        name: name that is unique in the document.
        title: heading, also for screen readers.
        caption: explanation of how to read the figure.
        has_heading: whether to show the title.
        is_wide: whether to scroll on narrow screens.
    """
    plot = element(
        "div",
        id=name,
        class_="plot wide" if is_wide else "plot",
        role="img",
        aria_label=title,
        style=f"height:{drawn.layout['height']}px",
    )
    return element(
        "figure",
        element("h3", title) if has_heading else None,
        element("div", plot, class_="scroll"),
        element("figcaption", caption) if caption else None,
        _json(f"{name}-data", {"data": drawn.data, "layout": drawn.layout}),
    )


def _json(name: str, data: object) -> Markup:
    """Put data into an inert script element; `<` is escaped, so nothing can end it; NaN is null."""
    text = json.dumps(data, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id=name)


def _normal(script: str) -> str:
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    return f"\n{text}\n"


@functools.cache
def _scripts() -> tuple[tuple[str, ...], str]:
    """Return the scripts of every page, and the policy that allows no other."""
    scripts = _normal(plotly.offline.get_plotlyjs()), _normal(_asset("page.js"))
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    sources = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    return scripts, f"{POLICY}; script-src {' '.join(sources)}"


def _asset(name: str) -> str:
    folder = importlib.resources.files("tuner.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")
