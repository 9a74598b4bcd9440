"""One BLAS thread while a proposal is made.

The matrices are small (hundreds of rows): more threads gain nothing on an idle machine, and where
other processes want the cores, threads that spin and wait made a proposal seven times slower
(measured: 1.2 s instead of 0.17 s on two busy cores). The limit holds for the whole process and
is put back afterwards. Without threadpoolctl nothing is limited.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from typing import Any


def single_threaded() -> contextlib.AbstractContextManager[Any]:
    """A context in which BLAS uses one thread, if that can be set."""
    controller = _controller()
    if controller is None:
        return contextlib.nullcontext()
    limited: contextlib.AbstractContextManager[Any] = controller.limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _controller() -> Any:
    """What knows the BLAS libraries of this process; finding them takes milliseconds, so once."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return None
    return importlib.import_module("threadpoolctl").ThreadpoolController()
