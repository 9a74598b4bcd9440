"""Checked values of a scenario file, and the traces and factors in files beside it."""

from __future__ import annotations

import csv
import io
import math
import pathlib
from collections.abc import Collection
from typing import Any

import numpy as np
from scipy import special

from serving.system import user_files
from tuner.document import Document, Path
from tuner.evaluation.scenarios.values import MAX_ARRIVALS

MIN_S = 1e-6
"""Times below it are rejected, being practically zero."""
MAX_BYTES = 256 << 20
STEPS = 1000
"""Factors for a jitter given as one number."""


class ScenarioValues:
    """Reader of values; errors name file, key and line."""

    def __init__(self, found: Document, folder: pathlib.Path) -> None:
        self._found = found
        self._folder = folder

    def mapping(self, given: object, path: Path, keys: Collection[str]) -> dict[str, Any]:
        """Return a mapping of known keys."""
        found = self._found.mapping(given, path)
        for key in found:
            self._found.reject_unknown(key, keys, (*path, key), "key")
        return found

    def positive(self, given: object, path: Path) -> float:
        """Return a number above 0."""
        number = self._found.number(given, path)
        if number <= 0:
            raise self.error(path, f"{given!r}, expected a number above 0")
        return number

    def from_zero(self, given: object, path: Path) -> float:
        """Return a number from 0."""
        number = self._found.number(given, path)
        if number < 0:
            raise self.error(path, f"{given!r}, expected a number from 0")
        return number

    def every(self, given: object, path: Path) -> float:
        """Return an interval in seconds; 0 is none."""
        number = self.from_zero(given, path)
        if 0 < number < MIN_S:
            raise self.error(path, f"{number:g}, expected 0, or at least {MIN_S:g} s")
        return number

    def whole(self, given: object, path: Path, least: int, most: int) -> int:
        """Return a whole number in a range."""
        number = self._found.whole_number(given, path)
        if not least <= number <= most:
            raise self.error(path, f"{number}, expected a whole number from {least} to {most:,}")
        return number

    def error(self, path: Path, text: str) -> Exception:
        """Return an error at a place in the file."""
        return self._found.error(path, text)

    def trace(self, name: str, copies: int, path: Path) -> tuple[tuple[float, int], ...]:
        """Return rows of seconds and a model's index in its group."""
        file = self._folder / name
        found: list[tuple[float, int]] = []
        try:
            with (
                user_files.open_file(file, max_bytes=MAX_BYTES) as opened,
                io.TextIOWrapper(opened, encoding="utf-8", newline="") as rows,
            ):
                for number, row in enumerate(csv.reader(rows), start=1):
                    if not row or row[0].startswith("#") or row[0] == "seconds":
                        continue
                    if len(found) == MAX_ARRIVALS:
                        text = f"{file}, line {number}: expected at most {MAX_ARRIVALS:,} arrivals"
                        raise self.error(path, text)
                    found.append(self._arrival(row, copies, file, number, path))
                    if len(found) > 1 and found[-1][0] < found[-2][0]:
                        text = f"{file}, line {number}: seconds {row[0]} come after {found[-2][0]:g}; sort the file"
                        raise self.error(path, text)
        except (OSError, ValueError, csv.Error) as error:  # ValueError: invalid path
            reason = getattr(error, "strerror", None) or str(error)
            raise self.error(path, f"{file} cannot be read: {reason}") from error
        if not found:
            raise self.error(path, f"{file}: no arrivals, expected rows of seconds,model")
        return tuple(found)

    def _arrival(
        self, row: list[str], copies: int, file: pathlib.Path, number: int, path: Path
    ) -> tuple[float, int]:
        try:
            at_s, model = float(row[0]), int(row[1])
        except (ValueError, IndexError):
            at_s, model = math.nan, -1
        if not (0 <= at_s < math.inf) or not 0 <= model < copies:
            raise self.error(
                path,
                f"{file}, line {number}: {','.join(row)!r}, expected seconds from 0 and a model from 0 to "
                f"{copies - 1}",
            )
        return at_s, model

    def jitter(self, given: object, path: Path) -> tuple[float, ...]:
        """Return a file's factors, one per line, or those of a half-normal distribution."""
        if not isinstance(given, str):
            spread = self.from_zero(given, path)
            shares = (np.arange(STEPS) + 0.5) / STEPS
            return tuple((1.0 + spread * special.ndtri((1.0 + shares) / 2.0)).tolist())
        file = self._folder / given
        try:
            lines = user_files.text(file, max_bytes=MAX_BYTES).split()
            factors = tuple(map(float, lines))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self.error(path, f"{file}: {reason}; expected a factor in each line") from error
        if not factors or not all(0 < factor < math.inf for factor in factors):
            raise self.error(path, f"{file}: expected factors above 0, one in each line")
        return factors
