"""Limit of one BLAS thread while fitting and proposing, as more threads are slower on busy cores."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any


def single_threaded() -> contextlib.AbstractContextManager[Any]:
    """Return a context with one BLAS thread in the whole process."""
    limited: contextlib.AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _controller() -> Any:
    return importlib.import_module("threadpoolctl").ThreadpoolController()
