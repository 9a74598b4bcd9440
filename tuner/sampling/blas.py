"""Limit BLAS to one thread while a proposal is made, as more slow busy cores down.

The limit holds for the whole process until restored, and needs threadpoolctl.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from typing import Any


def single_threaded() -> contextlib.AbstractContextManager[Any]:
    """Context with one BLAS thread, where possible."""
    controller = _controller()
    if controller is None:
        return contextlib.nullcontext()
    limited: contextlib.AbstractContextManager[Any] = controller.limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _controller() -> Any:
    if importlib.util.find_spec("threadpoolctl") is None:
        return None
    return importlib.import_module("threadpoolctl").ThreadpoolController()
