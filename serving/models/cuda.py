"""CUDA in a replica: the choice of `cpu` or `cuda` (the first GPU), and failures of the GPU.

The driver is asked, as it respects `CUDA_VISIBLE_DEVICES`. `gpu_count` initialises CUDA, which does
not survive a fork, so call it only in a replica. Source: CUDA driver API, cuInit, cuDeviceGetCount,
cuCtxSynchronize and the descriptions of CUresult.
"""

from __future__ import annotations

import ctypes
import os

from serving.errors import ModelLoadFailed

CPU = "cpu"
CUDA = "cuda"

_DRIVER = "libcuda.so.1"
_LASTING = {214, 220, 700, 702, 710, *range(714, 720), 999}
"""Results that all later calls return too: uncorrectable memory and NVLink errors, failed kernels,
unknown errors."""


class GpuMemoryFull(MemoryError):
    """The GPU's memory is exhausted."""


def gpu_count() -> int:
    """Return the number of visible GPUs; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def is_context_broken() -> bool:
    """Return whether this process can use the GPU no more, until it is started again.

    A failed kernel, as after an index out of range, makes all later calls of the process fail.
    Waits for the GPU; False if the calling thread has not used it.
    """
    try:
        driver = ctypes.CDLL(_DRIVER, os.RTLD_NOLOAD)
    except OSError:
        return False
    result: int = driver.cuCtxSynchronize()
    return result in _LASTING


def choose_device(wanted: str, *, model: str, runtime: str, offers_cuda: bool, gpus: int) -> str:
    """Choose the device, or raise ModelLoadFailed, which names `model` and `runtime`."""
    if wanted == CPU or (wanted != CUDA and not (offers_cuda and gpus)):
        return CPU
    if offers_cuda and gpus:
        return CUDA
    problem = "finds no GPU through CUDA" if offers_cuda else "is built without it"
    raise ModelLoadFailed(
        model,
        f"accelerator.device is cuda, but {runtime} {problem}; set it to auto or cpu, or install "
        "what is missing (docs/accelerator.md)",
    )
