"""Selection of `cpu` or `cuda` (first GPU) from `accelerator.device` and what the runtime offers.

The driver is asked, as it respects `CUDA_VISIBLE_DEVICES`. This initialises CUDA, which does not
survive a fork, so call it only in a replica. Source: CUDA driver API, cuInit and cuDeviceGetCount.
"""

from __future__ import annotations

import ctypes

from serving.errors import ModelLoadFailed

CPU = "cpu"
CUDA = "cuda"


def gpu_count() -> int:
    """Return the number of visible GPUs; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


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
