"""JSON from untrusted clients: bounded parsing, and short numbers in responses.

Size, number of values and nesting are checked before parsing, to protect the stack and event loop.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing.parse_budget import MAX_NUMBERS, MAX_VALUES
from serving.errors import InvalidRequest, JsonTooLarge
from serving.settings.server import ServerSettings

MAX_DEPTH = 100
"""Maximum nesting of arrays and objects, as in Triton."""
MAX_JSON_BYTES = ServerSettings().max_json_bytes
SMALL_BYTES = 64 * 1024
"""Size up to which JSON cannot hold too many values."""

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEP = np.zeros(256, dtype=np.int64)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1

_PIECEWISE = json.JSONEncoder(separators=(",", ":"))

_DIGITS = {2: range(3, 6), 4: range(6, 10)}
"""Size of a float in bytes -> numbers of digits to try."""
_FEW = 64


class JsonError(ValueError):
    """Invalid or too deeply nested JSON."""

    def __init__(self, reason: str, offset: int | None) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return self.reason if self.offset is None else f"{self.reason} at offset: {self.offset}"


def read(text: bytes, *, constants: bool = False, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse JSON in UTF-8; `constants` allows NaN and infinities.

    Raises:
        JsonError: the JSON is invalid.
        InvalidRequest: it is too large; see `check`.
    """
    if len(text) > max_bytes:
        raise JsonTooLarge(max_bytes)
    deep = depth(text)
    if deep > MAX_DEPTH:
        raise JsonError(
            f"The document is nested {deep} levels deep, at most {MAX_DEPTH} are allowed", None
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
    """Check that JSON is small enough for the event loop.

    Raises:
        JsonTooLarge: there are too many bytes.
        InvalidRequest: there are too many values, or UTF-16 or UTF-32 prevents counting them.
    """
    if len(text) > max_bytes:
        raise JsonTooLarge(max_bytes)
    if len(text) <= SMALL_BYTES:
        return
    if b"\0" in text[:4]:  # UTF-16 or UTF-32
        raise InvalidRequest("the request's JSON is not UTF-8")
    if _is_little(text, text.count(b'"') // 2):
        return
    bare = _without_escapes(text)
    texts = bare.count(b'"') // 2
    if texts > MAX_VALUES or not _is_little(_outside_texts(bare), texts):
        raise InvalidRequest(
            f"the request's JSON has more than {MAX_VALUES} texts, arrays and objects, or "
            f"more than {MAX_NUMBERS} values; send less per request, or numbers in binary "
            "tensors"
        )


def _is_little(text: bytes, texts: int) -> bool:
    """Whether the values, each after a comma or an opening bracket, are few enough."""
    opened = text.count(b"[") + text.count(b"{")
    return opened + texts <= MAX_VALUES and opened + text.count(b",") <= MAX_NUMBERS


def _without_escapes(text: bytes) -> bytes:
    # Pairs of backslashes first; the last of an odd number escapes what follows.
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_texts(bare: bytes) -> bytes:
    return b"".join(bare.split(b'"', 2 * MAX_VALUES + 1)[::2])


def depth(text: bytes) -> int:
    """Return the nesting depth up to the first `MAX_VALUES` strings; 0 means surely allowed."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0  # cannot be too deep
    if b'"' in text:
        text = _outside_texts(_without_escapes(text))
    steps = _STEP[np.frombuffer(text.translate(None, _NOT_BRACKETS), dtype=np.uint8)]
    return int(steps.cumsum().max(initial=0))


def write(value: object, *, constants: bool = False) -> str:
    """Return compact JSON, or raise ValueError for a non-finite number unless `constants`."""
    return json.dumps(value, separators=(",", ":"), allow_nan=constants)


def short_json(value: object, longest: int = 200) -> str:
    """Return a value's JSON, shortened for an error message."""
    text = ""
    for piece in _PIECEWISE.iterencode(value):
        text += piece[: longest + 1]
        if len(text) > longest:
            return f"{text[:longest]}..."
    return text


def shortest(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return each float as the float64 with its shortest decimal form.

    0.2 as float32 is 0.20000000298023224 as float64; this returns 0.2. 10^k is exact up to k = 22,
    so one operation with it rounds correctly.
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
