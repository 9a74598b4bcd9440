"""Settings of replicas: number and limits, the model inside, the GPU."""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.settings.setting import setting
from serving.tensors.input_values import values_of
from serving.tensors.sizes import pads_of, sizes_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Replicas of a model: their number and resource limits."""

    count: int = setting(1, "replicas", 1, 64)
    """Number of replicas. Default 1: the minimum."""
    cpu: float | None = setting(None, "cores", 0.05, 256)
    """CPU quota of each replica, in periods of 100 ms. Default none: no quota."""
    memory_mb: int | None = setting(None, "MiB", 8, 4_194_304)
    """Memory limit of each replica, without swap. Default none. Lowering it starts new replicas."""
    threads: int = setting(1, "threads", 1, 256)
    """Threads inside one operator of the runtime. Default 1: small models gain more from replicas."""
    spawner: Literal["process", "docker"] = setting("process", live=False)
    """Spawner of replicas: local processes (`process`) or local Docker containers (`docker`).

    Default process: it starts in tens of milliseconds, without other software (docs/containers.md).
    """
    image: str | None = setting(None, live=False)
    """Image of replicas where `spawner` is docker. Default none: the model kind's of `make images`."""
    max_response_mb: int = setting(256, "MiB", 1, 2047, live=False)
    """Maximum message from a replica: the responses of one batch.

    Beyond it, a batch's requests are repeated one by one; a single larger response fails. A replica
    that sends more is ended. Default 256 MiB: four of the largest requests.
    """
    ready_timeout_s: float = setting(30.0, "s", 0.1, 3600)
    """Time in which a starting replica must be ready. Default 30 s: large models load slowly."""
    warmup_s: float = setting(2.0, "s", 0, 3600)
    """Time to run the model on sample inputs before a replica takes requests (docs/models.md).

    The first call is always made; others, of single items and then of `batching.max_size`, if they
    should end in time. 0: only batching checks (docs/batching.md). Part of `ready_timeout_s`.
    Default 2 s: small models need milliseconds, large ones are not delayed for long.
    """
    hang_timeout_s: float = setting(30.0, "s", 0.1, 3600)
    """Time for one batch after which a replica is replaced. Default 30 s, as the default deadline."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Variant of a model, and declarations about its inputs."""

    variant: str | None = setting(None)
    """Variant of `model.yaml` to serve (docs/models.md); a change starts new replicas.

    Default none: that of `file`.
    """
    shapes: str | None = setting(
        None, check=lambda text: sizes_of(text.split(), source="model.shapes")
    )
    """Sizes of free dimensions, such as `image=3x640x640 sequence=16..512`.

    For synthetic warm-up inputs (docs/models.md). Default none: those of `model.yaml`; without
    them, a model with free dimensions is warmed up on samples only.
    """
    values: str | None = setting(
        None, check=lambda text: values_of(text.split(), source="model.values")
    )
    """Values of synthetic warm-up inputs, such as `ids=0..30521 mask=1 rate=16000`.

    A range is uniform. Default none: those of `model.yaml`, else numbers around zero, small
    integers, empty texts.
    """
    pad: str | None = setting(None, check=pads_of)
    """Padding values for `batching.pad_to`, such as `ids=0 mask=0`.

    Needed for each input with a free dimension beside the item axis. Default none: those of
    `model.yaml`.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    """The GPU: which models use it, how they share it, its clock (docs/accelerator.md)."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    """Where kinds `onnx` and `torch` run: the server's first CUDA GPU, or the CPU.

    `cuda`: the GPU, or the load fails. `cpu`: GPUs are hidden from replicas. Default auto: a GPU
    that the installed runtime supports, if any. A change starts new replicas.
    """
    share: int | None = setting(None, "%", 1, 100)
    """Maximum share of the GPU's threads per replica, through CUDA MPS.

    Without an MPS control daemon replicas take turns (logged once). Default none: all threads. A
    change starts new replicas.
    """
    clock_mhz: int | None = setting(None, "MHz", 1, 20_000)
    """Supported graphics clock to lock the GPU to while the server runs.

    Needs root; rejected if it cannot be set. Not per model. Default none: the driver decides.
    """
