"""HTML by construction: a string is escaped unless it is `Markup`, so no name can become a tag."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """A string that is already HTML."""

    __slots__ = ()


Child = str | int | float | None
"""Markup is inserted as it is, other values are escaped, and None is omitted."""

VOID = frozenset({"meta", "br", "hr"})


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an HTML element.

    Args:
        name: tag.
        children: content.
        attributes: `class_` becomes class, `data_value` data-value; True gives a bare attribute,
            None and False give none.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        parts.append(label if value is True else f'{label}="{html.escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    if name in VOID:
        return Markup(start)
    return Markup(f"{start}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Join children, escaping all but markup."""
    return Markup("".join(_text(child) for child in children if child is not None))


def table(heads: Sequence[Child], rows: Iterable[Markup], *, class_: str | None = None) -> Markup:
    """Return a table of `tr` rows that scrolls on narrow screens."""
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in heads)))
    body = element("tbody", *rows)
    return element("div", element("table", head, body, class_=class_), class_="scroll")


def row(*cells: Child, class_: str | None = None) -> Markup:
    """Return a table row, wrapping each child that is not a cell in a `td` element."""
    made = [
        cell if isinstance(cell, Markup) and cell.startswith("<td") else element("td", cell)
        for cell in cells
    ]
    return element("tr", *made, class_=class_)


def soft(text: Child) -> Markup:
    """Return a paragraph in small grey letters."""
    return element("p", text, class_="soft")


def verdict(sentence: str, numbers: str | None = None, *, tone: str | None = None) -> Markup:
    """Return a result in large letters, with its numbers below."""
    small = (element("br"), element("span", numbers, class_="soft")) if numbers else ()
    return element("p", element("span", sentence), *small, class_=f"verdict {tone or ''}".strip())


def bullets(items: Iterable[Child], *, class_: str | None = None) -> Markup | None:
    """Return an unordered list, or None without items."""
    made = [element("li", item) for item in items]
    return element("ul", *made, class_=class_) if made else None


def _text(child: Child) -> str:
    return child if isinstance(child, Markup) else html.escape(str(child))
