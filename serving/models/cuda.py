"""Whether this process can use a GPU through CUDA, and what a wish for one means for a runtime.

In: `accelerator.device`, and what the runtime offers. Out: `cpu` or `cuda`, which is the first GPU that CUDA
shows this process. The driver is asked, not a runtime: it knows what `CUDA_VISIBLE_DEVICES` hides. To ask it
begins CUDA in this process, which does not survive a fork: only a replica may, never its template.

Source: CUDA driver API, cuInit and cuDeviceGetCount.
"""

from __future__ import annotations

import ctypes

from serving.errors import ModelLoadFailed

CPU = "cpu"
CUDA = "cuda"
_LIBRARY = "libcuda.so.1"


def gpu_count() -> int:
    """GPUs that CUDA shows this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def chosen(wanted: str, *, model: str, runtime: str, offers_cuda: bool, gpus: int) -> str:
    """Where a model runs.

    Args:
        wanted: `auto`, `cpu` or `cuda`.
        model: its file, for an error.
        runtime: what to call the runtime.
        offers_cuda: whether it was built for CUDA.
        gpus: how many GPUs this process sees.

    Raises:
        ModelLoadFailed: `cuda`, and there is none.
    """
    if wanted == CPU or (wanted != CUDA and not (offers_cuda and gpus)):
        return CPU
    if not offers_cuda:
        raise ModelLoadFailed(model, f"{_asked(runtime)} is built without it; {_WAY_OUT}")
    if not gpus:
        raise ModelLoadFailed(model, f"{_asked(runtime)} finds no GPU through CUDA; {_WAY_OUT}")
    return CUDA


_WAY_OUT = "set it to auto or cpu, or install what is missing (docs/accelerator.md)"


def _asked(runtime: str) -> str:
    return f"accelerator.device is cuda, but {runtime}"
