"""Parts of error texts: hints, shortened values of clients, single lines."""

from __future__ import annotations

import difflib
import itertools
import reprlib
from collections.abc import Iterable

_MAX_NAME = 100
"""Maximum length of a misspelt name: matching megabytes takes seconds."""
_MAX_SHOWN = 300
_MAX_LISTED = 20


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 200
    short.maxlong = 80
    short.maxlist = short.maxtuple = 40
    short.maxlevel = 4
    return short


_SHORT = _short()


def nearest(given: str, valid: Iterable[str]) -> str:
    """Return a hint such as ", did you mean 'x'?", or an empty string."""
    if len(given) > _MAX_NAME:
        return ""
    close = difflib.get_close_matches(given, list(valid), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def short_repr(value: object) -> str:
    """Return the repr of a client's value, shortened."""
    return _cut(_SHORT.repr(value))


def shown_names(names: Iterable[str]) -> str:
    """Return the first of a client's names, each shortened."""
    first = [name[:_MAX_NAME] for name in itertools.islice(names, _MAX_LISTED)]
    return _cut(", ".join(first)) or "none"


def one_line(said: object) -> str:
    """Return a message of an error or another program as one line."""
    return " ".join(str(said).split())


def printable_line(said: object) -> str:
    """Return one line with `?` for what cannot be printed, such as colours of a terminal."""
    return "".join(c if c.isprintable() else "?" for c in one_line(said))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
