"""JSON of a stranger: read with bounds on its size, values and nesting, and numbers written as short as they can be.

In: the bytes of a body; out: the value. Nothing that a client sends makes the parser recurse deeper
than `MAX_DEPTH`, or takes more than its share of the thread that serves everybody: what would is told
before it is parsed. And back: numbers of a float32 without the digits that only its way through a
float64 adds, which spares a third of a body of scores.

Pure.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest, JsonTooLarge
from serving.protocol.budget import MAX_NUMBERS, MAX_VALUES
from serving.settings import ServerSettings

MAX_DEPTH = 100
"""Arrays and objects within one another; what Triton allows."""
MAX_JSON_BYTES = ServerSettings().max_json_bytes
"""Where nothing else is set."""
SMALL_BYTES = 64 * 1024
"""A text up to this has no room for too many values."""

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEP = np.zeros(256, dtype=np.int64)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1

_PIECEWISE = json.JSONEncoder(separators=(",", ":"))

_DIGITS = {2: range(3, 6), 4: range(6, 10)}
"""Bytes of a float -> significant digits: from those that it surely has to those that tell any two apart."""
_FEW = 64
"""Values up to which one after the other is quicker than all at once."""


class JsonError(ValueError):
    """A text that is no JSON, or is nested too deeply; `offset` is a place in it, or None."""

    def __init__(self, reason: str, offset: int | None) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return self.reason if self.offset is None else f"{self.reason} at offset: {self.offset}"


def read(text: bytes, *, constants: bool = False, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        text: at most as long as the listener allows.
        constants: take NaN, Infinity and -Infinity, which are not JSON.
        max_bytes: longest text that is read here.

    Raises:
        JsonError: why it has no value.
        InvalidRequest: it would be too much work to tell; see `check`.
    """
    if len(text) > max_bytes:
        raise JsonTooLarge(max_bytes)
    deep = depth(text)
    if deep > MAX_DEPTH:
        raise JsonError(
            f"The document is nested {deep} levels deep, at most {MAX_DEPTH} are read", None
        )
    check(text, max_bytes)
    try:
        return json.loads(text.decode(), parse_constant=None if constants else _no_constant)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.pos) from None
    except UnicodeDecodeError as error:
        raise JsonError("The document is not UTF-8", error.start) from None
    except JsonError:
        raise
    except (ValueError, RecursionError):
        raise JsonError("A number has too many digits", None) from None


def check(text: bytes, max_bytes: int = MAX_JSON_BYTES) -> None:
    """Whether a JSON text is little enough to be read on the thread that serves everybody.

    Raises:
        JsonTooLarge: it is longer than that.
        InvalidRequest: it has more values than `budget` allows, or is in no UTF-8, of which these are counted.
    """
    if len(text) > max_bytes:
        raise JsonTooLarge(max_bytes)
    if len(text) <= SMALL_BYTES:
        return
    if b"\0" in text[:4]:  # as UTF-16 and UTF-32 begin
        raise InvalidRequest("the request's JSON is not UTF-8")
    if _is_little(text, text.count(b'"') // 2):
        return
    bare = _without_escapes(text)
    texts = bare.count(b'"') // 2
    if texts > MAX_VALUES or not _is_little(_outside_texts(bare), texts):
        raise InvalidRequest(
            f"the request's JSON has more than {MAX_VALUES} texts, arrays and objects, or more than {MAX_NUMBERS} "
            "values; send less in one request, or numbers in binary tensors"
        )


def _is_little(text: bytes, texts: int) -> bool:
    """Whether what has so many texts has few values: each stands behind a comma or an opening bracket."""
    opened = text.count(b"[") + text.count(b"{")
    return opened + texts <= MAX_VALUES and opened + text.count(b",") <= MAX_NUMBERS


def _without_escapes(text: bytes) -> bytes:
    """A JSON text in which each quotation mark begins or ends a text."""
    # Pairs of backslashes first: what is left of an odd number of them escapes what follows.
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_texts(bare: bytes) -> bytes:
    """What stands between the first `MAX_VALUES` texts of a JSON text without escapes; the last one may not end.

    Each takes eighty bytes of memory for a moment.
    """
    return b"".join(bare.split(b'"', 2 * MAX_VALUES + 1)[::2])


def depth(text: bytes) -> int:
    """How deeply arrays and objects stand within one another, up to as many texts as are read."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0  # too few to be too deep
    if b'"' in text:
        text = _outside_texts(_without_escapes(text))
    steps = _STEP[np.frombuffer(text.translate(None, _NOT_BRACKETS), dtype=np.uint8)]
    return int(steps.cumsum().max(initial=0))


def write(value: object, *, constants: bool = False) -> str:
    """Compact JSON.

    Raises:
        ValueError: a number is not finite and `constants` do not stand for those.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=constants)


def shown(value: object, longest: int = 200) -> str:
    """A value for an error's text: its JSON, cut off where it is long, in one line."""
    text = ""
    for piece in _PIECEWISE.iterencode(value):
        text += piece[: longest + 1]
        if len(text) > longest:
            return f"{text[:longest]}..."
    return text


def shortest(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Each float as the float64 whose shortest decimal form still reads back as the same float.

    A float32 of 0.2 is 0.20000000298023224 as a float64; this returns 0.2. 10^k is exact for k up to
    22, hence what is divided or multiplied by it last is the decimal, correctly rounded; numbers too
    large or too small for that keep all their digits.
    """
    wide = values.astype(np.float64)
    if values.dtype.itemsize >= wide.dtype.itemsize:
        return wide
    if values.size <= _FEW:
        few = [float(str(value)) for value in values.ravel()]
        return np.array(few, dtype=np.float64).reshape(values.shape)
    result = wide.copy()
    open_ = np.isfinite(wide) & (wide != 0)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log10(np.abs(wide, where=open_, out=np.ones_like(wide))))
        for digits in _DIGITS[values.dtype.itemsize]:
            power = (digits - 1 - exponent).astype(np.int64)
            up, down = 10.0 ** np.clip(power, 0, 22), 10.0 ** np.clip(-power, 0, 22)
            candidate = np.rint(wide * up / down) / up * down
            found = open_ & (np.abs(power) <= 22) & (candidate.astype(values.dtype) == values)
            result = np.where(found, candidate, result)
            open_ &= ~found
            if not open_.any():
                break
    return result


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"Invalid value {name}", None)
