"""Values of synthetic inputs: declared (`ids=0..30521`, `mask=1`, `text=@lines.txt`) or default."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.error_text import nearest
from serving.errors import InvalidSettings
from serving.tensors.arrays import DTYPES
from serving.values import Signature, TensorSpec

FORMS = "LOW..HIGH, one value, or @FILE with one value per line"
SMALL = 9  # the largest default integer
MAX_LINES = 1_000_000
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_TRUTHS = {"true": 1, "false": 0}
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueSpec:
    """Generator for the values of one input."""

    spec: TensorSpec
    text: str
    says: str
    draw: Draw
    """Draws values for a given shape, in the input's datatype."""

    @property
    def is_guessed(self) -> bool:
        """Whether the values are undeclared integers."""
        return not self.text and self.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether the values are integers."""
        return "INT" in self.spec.datatype


def value_specs_of(
    texts: Sequence[str],
    signature: Signature,
    *,
    read: Callable[[str], str] | None = None,
    source: str = "--values",
) -> dict[str, ValueSpec]:
    """Return the value generator of every input from NAME=VALUES strings, or raise InvalidSettings.

    `read` returns a file's text; if it is None, files are rejected. `source` is named in errors.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    found = {name: _default(spec) for name, spec in specs.items()}
    for name, told in values_of(texts, source=source).items():
        where = f"{source} {name}={told}"
        if name not in specs:
            raise InvalidSettings(
                f"{where}: no such input{nearest(name, specs)} (inputs: {', '.join(specs)})"
            )
        found[name] = _parse_value_spec(specs[name], told, where, read)
    return found


def values_of(texts: Sequence[str], *, source: str = "--values") -> dict[str, str]:
    """Return the declared values by input name, or raise InvalidSettings."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, told = text.partition("=")
        if not separator or not name or not told:
            raise InvalidSettings(f"{source} {text}: expected INPUT=VALUES, VALUES being {FORMS}")
        if name in found:
            raise InvalidSettings(f"{source} {text}: {name!r} is given twice")
        found[name] = told
    return found


def _default(spec: TensorSpec) -> ValueSpec:
    draw: Draw
    kind = DTYPES.get(spec.datatype)
    if kind is None:
        says, draw = "eight letters", _letters
    elif kind.kind == "f":
        says, draw = "standard normal", _normal(kind)
    elif kind.kind == "b":
        says, draw = "true or false", _uniform(kind, 0, 1)
    else:
        says, draw = f"whole numbers from 0 to {SMALL}", _uniform(kind, 0, SMALL)
    return ValueSpec(spec=spec, text="", says=says, draw=draw)


def _normal(kind: np.dtype[Any]) -> Draw:
    return lambda rng, shape: np.asarray(rng.standard_normal(shape)).astype(kind)


def _letters(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    words = ["".join(rng.choice(_LETTERS, 8)) for _ in range(math.prod(shape))]
    return np.array(words, dtype=object).reshape(shape)


def _parse_value_spec(
    spec: TensorSpec, told: str, where: str, read: Callable[[str], str] | None
) -> ValueSpec:
    if told.startswith("@"):
        if read is None:
            raise InvalidSettings(f"{where}: files are not supported here; give a range, as 0..9")
        lines = [line for line in read(told[1:]).splitlines() if line.strip()]
        if not 0 < len(lines) <= MAX_LINES:
            raise InvalidSettings(
                f"{where}: {len(lines)} non-empty lines, expected 1 to {MAX_LINES:,}"
            )
        draw = _one_of(lines if spec.datatype == "BYTES" else _numbers(spec, lines, where))
        return ValueSpec(spec=spec, text=told, says=f"lines of {told[1:]}", draw=draw)
    if spec.datatype == "BYTES":
        return ValueSpec(spec=spec, text=told, says=repr(told), draw=_one_of([told]))
    low, dots, high = told.partition("..")
    ends = _numbers(spec, [low, high] if dots else [low], where)
    if ends[0] > ends[-1]:
        raise InvalidSettings(f"{where}: expected the smaller number first")
    says = f"uniform from {low} to {high}" if dots else low
    draw = _uniform(DTYPES[spec.datatype], ends[0], ends[-1])
    return ValueSpec(spec=spec, text=told, says=says, draw=draw)


def _numbers(spec: TensorSpec, texts: Sequence[str], where: str) -> NDArray[Any]:
    kind = DTYPES[spec.datatype]
    found: list[Any] = []
    for text in texts:
        try:
            number = float(text) if kind.kind == "f" else int(_TRUTHS.get(text.lower(), text))
        except ValueError:
            expected = "a number" if kind.kind == "f" else "a whole number"
            raise InvalidSettings(
                f"{where}: {text!r} is not a value of {spec.datatype}; expected "
                f"{expected}, as {FORMS}"
            ) from None
        low, high = _range(kind)
        if not low <= number <= high:  # also rejects NaN
            raise InvalidSettings(
                f"{where}: {text} is out of the range of {spec.datatype}, {low} to {high}"
            )
        found.append(number)
    return np.array(found, dtype=kind)


def _range(kind: np.dtype[Any]) -> tuple[float | int, float | int]:
    if kind.kind == "b":
        return 0, 1
    if kind.kind == "f":
        limits = np.finfo(kind)
        return float(limits.min), float(limits.max)
    whole = np.iinfo(kind)
    return int(whole.min), int(whole.max)


def _uniform(kind: np.dtype[Any], low: Any, high: Any) -> Draw:
    if low == high:
        return lambda _rng, shape: np.full(shape, low, kind)
    if kind.kind != "f":
        drawn: Any = "u1" if kind.kind == "b" else kind.newbyteorder("=")
        first, last = int(low), int(high)
        return lambda rng, shape: np.asarray(
            rng.integers(first, last, shape, dtype=drawn, endpoint=True)
        ).astype(kind)

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        share = rng.random(shape)  # high - low could overflow
        return np.clip(float(low) * (1 - share) + float(high) * share, low, high).astype(kind)

    return draw


def _one_of(values: Sequence[Any] | NDArray[Any]) -> Draw:
    array = values if isinstance(values, np.ndarray) else np.array(values, object)
    return lambda rng, shape: np.asarray(array[rng.integers(0, len(array), shape)])
