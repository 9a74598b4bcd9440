"""Sizes of free dimensions in strings such as `image=3x640x640` and `sequence=16..512`."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from serving.errors import InvalidSettings

if TYPE_CHECKING:
    import numpy as np

MAX_SIZE = 2**31 - 1
_MAX_LINES = 1_000_000
FORMS = "640, 16..512, lognormal(64,0.8)<=512 or @FILE with one size per line"
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LOGNORMAL = re.compile(r"lognormal\((\d+(?:\.\d+)?),(\d+(?:\.\d+)?)\)<=(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Size of one free dimension, fixed or varying between requests."""

    text: str
    low: int
    high: int
    median: float | None = None
    sigma: float | None = None
    """Sigma of a lognormal distribution, cut off at `high`; None for a uniform distribution."""
    lengths: tuple[int, ...] = ()
    """Sizes from a file, all equally likely."""

    @property
    def varies(self) -> bool:
        """Whether the size varies between requests."""
        return self.low < self.high

    @property
    def typical(self) -> int:
        """Median of the drawn sizes."""
        if self.lengths:
            return round(statistics.median(self.lengths))
        if self.median is not None:
            return min(max(round(self.median), self.low), self.high)
        return (self.low + self.high) // 2

    def draw(self, rng: np.random.Generator) -> int:
        """Draw one size from the distribution."""
        if self.lengths:
            return int(self.lengths[rng.integers(len(self.lengths))])
        if self.median is not None and self.sigma is not None:
            drawn = rng.lognormal(math.log(self.median), self.sigma)
            return min(max(round(drawn), self.low), self.high)
        return int(rng.integers(self.low, self.high + 1))


Sizes = Mapping[str, tuple[Size, ...]]
"""Sizes of an input's axes except the item axis, or of one dimension, by name."""


def sizes_of(
    texts: Sequence[str], *, read: Callable[[str], str] | None = None, source: str = "--shape"
) -> dict[str, tuple[Size, ...]]:
    """Parse NAME=SIZES strings, or raise InvalidSettings.

    `read` returns a file's text; if it is None, files are rejected. `source` is named in errors.
    """
    found: dict[str, tuple[Size, ...]] = {}
    for text in texts:
        name, separator, sizes = text.partition("=")
        if not separator or not name.strip() or not sizes.strip():
            raise InvalidSettings(
                f"{source} {text!r}: expected NAME=SIZES, as image=3x640x640 or sequence=128, NAME being an "
                "input or a dimension"
            )
        if name.strip() in found:
            raise InvalidSettings(f"{source} {text!r}: {name.strip()!r} is given twice")
        found[name.strip()] = _parse(sizes.strip(), read, f"{source} {text!r}")
    return found


def to_texts(sizes: Sizes) -> tuple[str, ...]:
    """Return sizes as `sizes_of` parses them; those from files become a range."""
    return tuple(
        f"{name}={'x'.join(_without_file(size) for size in each)}" for name, each in sizes.items()
    )


def pads_of(text: str, *, source: str = "model.pad") -> dict[str, float]:
    """Parse padding values by input, such as `ids=0 mask=0`, or raise InvalidSettings."""
    found = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidSettings(f"{source} {part!r}: expected INPUT=NUMBER, as ids=0") from None
    return found


def _without_file(size: Size) -> str:
    return f"{size.low}..{size.high}" if size.lengths and size.varies else size.text


def _parse(text: str, read: Callable[[str], str] | None, where: str) -> tuple[Size, ...]:
    if text.startswith("@"):
        if read is None:
            raise InvalidSettings(
                f"{where}: files are not supported here; give the range, as 16..512"
            )
        return (_of_lines(text, read(text[1:]), where),)
    return tuple(_size(part, where) for part in text.split("x"))


def _size(text: str, where: str) -> Size:
    if text.isdecimal():
        return _check(Size(text, int(text), int(text)), where)
    if found := _RANGE.fullmatch(text):
        return _check(Size(text, int(found[1]), int(found[2])), where)
    if found := _LOGNORMAL.fullmatch(text):
        high = int(found[3])
        if float(found[1]) < 1:
            raise InvalidSettings(f"{where}: a median of {found[1]}, expected 1 or more")
        size = Size(text, 1, high, median=float(found[1]), sigma=float(found[2]))
        return _check(size, where)
    raise InvalidSettings(f"{where}: {text!r} is not a size; expected {FORMS}")


def _of_lines(text: str, content: str, where: str) -> Size:
    lines = content.split()
    if not 0 < len(lines) <= _MAX_LINES or not all(line.isdecimal() for line in lines):
        raise InvalidSettings(
            f"{where}: expected a file with one whole number in each line, up to {_MAX_LINES:,} of them"
        )
    lengths = tuple(map(int, lines))
    return _check(Size(text, min(lengths), max(lengths), lengths=lengths), where)


def _check(size: Size, where: str) -> Size:
    if not 1 <= size.low <= size.high <= MAX_SIZE:
        raise InvalidSettings(
            f"{where}: {size.text!r} is not a size; expected from 1 to {MAX_SIZE:,}, the "
            "smaller one first"
        )
    return size
