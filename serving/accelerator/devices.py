"""GPU visibility to a process, by CUDA's environment variables.

The server uses the first GPU in `CUDA_VISIBLE_DEVICES`; CUDA and NVML count GPUs alike with
`CUDA_DEVICE_ORDER=PCI_BUS_ID`.

Source: CUDA C++ Programming Guide, environment variables; the MPS documentation, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.errors import AcceleratorUnavailable
from serving.settings.replica import AcceleratorSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE_VISIBLE = "-1"
"""Invalid index: CUDA ignores it and all that follow."""
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def first_visible(environ: Mapping[str, str]) -> int | str:
    """Return the index or UUID of the server's GPU.

    Raises:
        AcceleratorUnavailable: the environment hides all GPUs.
    """
    listed = environ.get(VISIBLE)
    if listed is None:
        return 0
    first = listed.partition(",")[0].strip()
    if first.isdecimal():
        return int(first)
    if first.startswith(("GPU-", "MIG-")):
        return first
    raise AcceleratorUnavailable(f"{VISIBLE}={listed!r:.100} hides all GPUs")


def replica_environment(
    settings: AcceleratorSettings, *, shares: bool, gpu: str | None = None
) -> dict[str, str]:
    """Return a replica's extra variables.

    Args:
        settings: the replica's.
        shares: whether an MPS control daemon is running.
        gpu: index or UUID of its GPU; None: the first visible one.
    """
    if settings.device == "cpu":
        return {VISIBLE: NONE_VISIBLE}
    chosen = {} if gpu is None else {VISIBLE: gpu}
    if settings.share is None or not shares:
        return chosen
    return {**chosen, MPS_SHARE: str(settings.share)}


def container_gpu(
    settings: AcceleratorSettings, environ: Mapping[str, str], *, has_gpu: bool
) -> str | None:
    """Return a container's GPU (for `docker run --gpus device=...`), or None.

    Raises:
        AcceleratorUnavailable: the environment hides all GPUs.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not has_gpu):
        return None
    return str(first_visible(environ))
