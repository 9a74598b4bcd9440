"""HTML by construction: text is escaped unless it is `Markup`, so no name can become a tag.

In: names, attributes, children. Out: `Markup`. Knows nothing of studies.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None
"""Markup goes in as it is, anything else as escaped text; None is left out."""

VOID = frozenset({"meta", "br", "hr"})


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element.

    Args:
        name: tag.
        children: content in order.
        attributes: `class_` is written as class and `data_value` as data-value; True gives a bare
            attribute, None and False leave it out.
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
    return Markup(f"{start}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Children in order, each escaped unless it is markup."""
    return Markup("".join(_text(child) for child in children if child is not None))


def table(heads: Sequence[Child], rows: Iterable[Markup], *, class_: str | None = None) -> Markup:
    """A table that scrolls sideways on a narrow screen; rows are `tr` elements."""
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in heads)))
    body = element("tbody", *rows)
    return element("div", element("table", head, body, class_=class_), class_="scroll")


def bullets(items: Iterable[Child], *, class_: str | None = None) -> Markup | None:
    """An unordered list; None without items."""
    made = [element("li", item) for item in items]
    return element("ul", *made, class_=class_) if made else None


def _text(child: Child) -> str:
    return child if isinstance(child, Markup) else html.escape(str(child))
