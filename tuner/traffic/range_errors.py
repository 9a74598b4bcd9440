"""Answers that an index is out of range, which made-up inputs are apt to get; and the option that helps.

In: an engine's words. Out: a hint. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_OUT_OF_RANGE = re.compile(
    r"\bind(ex|ices)\b.*\b(out of (data )?(bounds|range)|not in \[)|out of (bounds|range).*\bind(ex|ices)\b",
    re.IGNORECASE,
)
"""Words of runtimes on an index that is none: ONNX Runtime, PyTorch, NumPy, TensorFlow."""
_LAST = re.compile(r"inclusive range \[-?\d+, ?(\d+)\]")
_COUNT = re.compile(r"with size (\d+)|not in \[0, (\d+)\)")


def hint(answer: str, inputs: Sequence[str]) -> str:
    """The option to try where an answer says that an index is out of range; empty where it says nothing of that.

    Args:
        answer: the server's words.
        inputs: that were sent whole numbers which the tuner made up.
    """
    if not inputs or not _OUT_OF_RANGE.search(answer):
        return ""
    high = "HIGH"
    if last := _LAST.search(answer):
        high = last[1]
    elif count := _COUNT.search(answer):
        high = str(int(count[1] or count[2]) - 1)
    options = " or ".join(f"--values {name}=0..{high}" for name in inputs)
    return f"an index was out of range: tell which values the input takes, {options}"
