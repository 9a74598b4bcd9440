"""What of the machine's GPUs a process is shown, by CUDA's own variables.

In: the settings of the accelerator, an environment. Out: the one GPU that is meant, and the variables
of a replica. The server uses one GPU: the first of `CUDA_VISIBLE_DEVICES`, which CUDA and NVML count alike
where `CUDA_DEVICE_ORDER` is `PCI_BUS_ID` (`replica.forker` sees to it). Pure.

Source: CUDA C++ Programming Guide, environment variables; the MPS documentation, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.errors import AcceleratorUnavailable
from serving.settings import AcceleratorSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE_VISIBLE = "-1"
"""As a value of `CUDA_VISIBLE_DEVICES`: what stands behind an index that is none is not seen either."""
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def first_visible(environ: Mapping[str, str]) -> int | str:
    """The GPU that the server uses: its index, or its UUID.

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


def replica_environment(settings: AcceleratorSettings, *, shares: bool) -> dict[str, str]:
    """Variables of a replica that differ from its server's; CUDA reads them when it begins.

    Args:
        settings: of its model.
        shares: whether an MPS control daemon runs; without one a share does nothing.
    """
    if settings.device == "cpu":
        return {VISIBLE: NONE_VISIBLE}
    if settings.share is None or not shares:
        return {}
    return {MPS_SHARE: str(settings.share)}


def container_gpu(
    settings: AcceleratorSettings, environ: Mapping[str, str], *, has_gpu: bool
) -> str | None:
    """The GPU that a replica in a container is given (`docker run --gpus device=...`); None: no GPU.

    Args:
        settings: of its model.
        environ: of the server.
        has_gpu: whether this machine has a GPU (`nvml.is_there`): asking an engine for one that it has not
            got is an error, so `auto` asks only where there is one.

    Raises:
        AcceleratorUnavailable: `cuda` is asked for, and the environment hides all GPUs.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not has_gpu):
        return None
    return str(first_visible(environ))
