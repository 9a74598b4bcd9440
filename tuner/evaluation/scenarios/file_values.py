"""Checked values of a scenario file, and of the trace and jitter files next to it."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, Self

import numpy as np
from scipy import special

from serving.system import user_files
from tuner.document import Document, Path
from tuner.errors import InvalidDocument
from tuner.evaluation.scenarios.values import MAX_ARRIVALS

MAX_BYTES = 256 << 20
STEPS = 1000
"""Number of factors that represent a jitter given as one number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Mapping in a scenario file; errors name file, key and line."""

    document: Document
    folder: pathlib.Path
    """Folder that holds the scenario file and the files it names."""
    path: Path
    values: Mapping[str, Any]

    @classmethod
    def root(cls, document: Document, folder: pathlib.Path) -> Self:
        """Return the section for the whole file."""
        return cls(document, folder, (), document.mapping(document.value, ()))

    def section(self, key: str, default: object = None) -> Self:
        """Return the mapping below a key."""
        path = (*self.path, key)
        values = self.document.mapping(self.values.get(key, default), path)
        return dataclasses.replace(self, path=path, values=values)

    def of_keys(self, keys: Collection[str]) -> Self:
        """Return this section, or raise an error if it has a key that is not one of `keys`."""
        for key in self.values:
            self.document.reject_unknown(key, keys, (*self.path, key), "key")
        return self

    def error(self, text: str, *keys: str) -> InvalidDocument:
        """Return an error about this mapping or a key in it."""
        return self.document.error((*self.path, *keys), text)

    def number(self, key: str, default: float | None = None) -> float:
        """Return the finite number at a key."""
        return self.document.number(self.values.get(key, default), (*self.path, key))

    def positive(self, key: str, default: float | None = None) -> float:
        """Return the number at a key, which must be above 0."""
        number = self.number(key, default)
        if number <= 0:
            raise self.error(f"{self.values[key]!r}, expected a number above 0", key)
        return number

    def from_zero(self, key: str, default: float = 0) -> float:
        """Return the number at a key, which must be at least 0."""
        number = self.number(key, default)
        if number < 0:
            raise self.error(f"{self.values[key]!r}, expected a number from 0", key)
        return number

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        """Return the whole number at a key, which must be in a range."""
        number = self.document.whole_number(self.values.get(key, default), (*self.path, key))
        if not least <= number <= most:
            raise self.error(f"{number}, expected a whole number from {least} to {most:,}", key)
        return number

    def text(self, key: str, default: str | None = None) -> str:
        """Return the non-empty string at a key."""
        return self.document.text(self.values.get(key, default), (*self.path, key))

    def name(self, key: str, default: str | None, valid: Collection[str], noun: str) -> str:
        """Return the name at a key, which must be one of `valid`."""
        name = self.text(key, default)
        self.document.reject_unknown(name, valid, (*self.path, key), noun)
        return name

    def trace(self, key: str, copies: int) -> tuple[tuple[float, int], ...]:
        """Return the rows of a trace file: a time in seconds and a model's index in its group."""
        file = self.folder / self.text(key)
        found: list[tuple[float, int]] = []
        try:
            with io.TextIOWrapper(
                user_files.open_file(file, max_bytes=MAX_BYTES), encoding="utf-8", newline=""
            ) as rows:
                for number, row in enumerate(csv.reader(rows), start=1):
                    if not row or row[0].startswith("#") or row[0] == "seconds":
                        continue
                    where = f"{file}, line {number}"
                    if len(found) == MAX_ARRIVALS:
                        raise self.error(
                            f"{where}: expected at most {MAX_ARRIVALS:,} arrivals", key
                        )
                    found.append(self._arrival(row, copies, where, key))
                    if len(found) > 1 and found[-1][0] < found[-2][0]:
                        text = (
                            f"{where}: seconds {row[0]} come after {found[-2][0]:g}; sort the file"
                        )
                        raise self.error(text, key)
        except (OSError, ValueError, csv.Error) as error:  # ValueError: invalid path
            reason = getattr(error, "strerror", None) or str(error)
            raise self.error(f"{file} cannot be read: {reason}", key) from error
        if not found:
            raise self.error(f"{file}: no arrivals, expected rows of seconds,model", key)
        return tuple(found)

    def _arrival(self, row: list[str], copies: int, where: str, key: str) -> tuple[float, int]:
        try:
            at_s, model = float(row[0]), int(row[1])
        except (ValueError, IndexError):
            at_s, model = math.nan, -1
        if not (0 <= at_s < math.inf) or not 0 <= model < copies:
            raise self.error(
                f"{where}: {','.join(row)!r}, expected seconds from 0 and a model from 0 to "
                f"{copies - 1}",
                key,
            )
        return at_s, model

    def jitter(self, key: str) -> tuple[float, ...]:
        """Return the factors in a file, one per line, or those of a half-normal distribution."""
        given = self.values.get(key, 0)
        if not isinstance(given, str):
            spread = self.from_zero(key)
            shares = (np.arange(STEPS) + 0.5) / STEPS
            return tuple((1.0 + spread * special.ndtri((1.0 + shares) / 2.0)).tolist())
        file = self.folder / given
        try:
            lines = user_files.text(file, max_bytes=MAX_BYTES).split()
            factors = tuple(map(float, lines))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self.error(f"{file}: {reason}; expected a factor in each line", key) from error
        if not factors or not all(0 < factor < math.inf for factor in factors):
            raise self.error(f"{file}: expected factors above 0, one in each line", key)
        return factors
