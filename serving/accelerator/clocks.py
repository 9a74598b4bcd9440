"""Which graphics clocks the GPU of this machine offers, read through NVML.

In: nothing. Out: the clocks in MHz, ascending, or the reason why none can be read. Reading only:
this file never sets, locks or resets a clock. NVML comes with the driver; its Python binding
(`nvidia-ml-py`) is optional.
"""

from __future__ import annotations

import importlib
from typing import Any

GPU_INDEX = 0
"""The first GPU: a replica is bound to no other in this version."""


def supported_clocks_mhz() -> tuple[int, ...] | str:
    """Graphics clocks that the first GPU supports at its highest memory clock.

    Returns:
        Clocks in MHz, ascending; or one line that says why there are none.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return "the Python package nvidia-ml-py is not installed, so no GPU can be asked"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"no GPU answers through NVML: {error}"
    try:
        return _clocks(nvml)
    except nvml.NVMLError as error:
        return f"the GPU does not tell its clocks: {error}"
    finally:
        nvml.nvmlShutdown()


def _clocks(nvml: Any) -> tuple[int, ...]:
    device = nvml.nvmlDeviceGetHandleByIndex(GPU_INDEX)
    memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(device))
    return tuple(sorted(set(nvml.nvmlDeviceGetSupportedGraphicsClocks(device, memory_mhz))))
