"""Settings of replicas: their number and limits, the model inside, the GPU."""

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
    """CPU quota of each replica, enforced in periods of 100 ms. Default none: no limit."""
    memory_mb: int | None = setting(None, "MiB", 8, 4_194_304)
    """Memory limit of each replica, without swap. Default none. Lowering it starts new replicas."""
    threads: int = setting(1, "threads", 1, 256)
    """Threads inside one operator. Default 1: for small models, more replicas help more."""
    spawner: Literal["process", "docker", "ray"] = setting("process", live=False)
    """What runs the replicas: local processes (`process`), local Docker containers (`docker`), or
    machines of a Ray cluster (`ray`, with the settings `cluster`).

    Default process: it starts in tens of milliseconds, without other software (docs/containers.md,
    docs/machines.md).
    """
    limits: Literal["each", "pod"] = setting("each", live=False)
    """What is limited: each replica by its own control group (`each`), or the server by its pod (`pod`).

    With `pod`, `cpu` and `memory_mb` only say what each replica is meant to use: whoever starts the
    server limits it as a whole, as `tune --for kubernetes` does. Default each.
    """
    image: str | None = setting(None, live=False)
    """Image of replicas if `spawner` is docker. Default none: the one that `make images` builds."""
    max_response_mb: int = setting(256, "MiB", 1, 2047, live=False)
    """Maximum size of a message from a replica: the responses to one batch.

    Beyond it, a batch's requests are repeated one by one; a single larger response fails. A replica
    that sends more is ended. Default 256 MiB: four of the largest requests.
    """
    ready_timeout_s: float = setting(30.0, "s", 0.1, 3600)
    """Time in which a starting replica must be ready. Default 30 s: large models load slowly.

    Sending files to another machine does not count; it is given up if nothing arrives for 30 s.
    """
    warmup_s: float = setting(2.0, "s", 0, 3600)
    """Time to run the model on sample inputs before a replica takes requests (docs/models.md).

    The first call is always made; further calls, with single items and then with
    `batching.max_size`, are made if they should end in time. With 0, only batching is checked
    (docs/batching.md). Counts towards `ready_timeout_s`. Default 2 s: small models need
    milliseconds, large ones are not delayed for long.
    """
    hang_timeout_s: float = setting(30.0, "s", 0.1, 3600)
    """Maximum time for one batch; a replica that takes longer is replaced.

    Default 30 s, as the default deadline.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Variant of a model, and declarations of its inputs."""

    variant: str | None = setting(None)
    """Variant in `model.yaml` to serve (docs/models.md); a change starts new replicas.

    Default none: the one with the spec's `file`.
    """
    shapes: str | None = setting(
        None, check=lambda text: sizes_of(text.split(), source="model.shapes")
    )
    """Sizes of free dimensions, such as `image=3x640x640 sequence=16..512`.

    Used for synthetic warm-up inputs (docs/models.md). Default none: those in `model.yaml`; without
    them, a model with free dimensions is warmed up on samples only.
    """
    values: str | None = setting(
        None, check=lambda text: values_of(text.split(), source="model.values")
    )
    """Values of synthetic warm-up inputs, such as `ids=0..30521 mask=1 rate=16000`.

    Values in a range are drawn uniformly. Default none: those in `model.yaml`, or else numbers
    around zero, small integers and empty strings.
    """
    pad: str | None = setting(None, check=pads_of)
    """Padding values for `batching.pad_to`, such as `ids=0 mask=0`.

    Needed for each input with a free dimension other than the item axis. Default none: those in
    `model.yaml`.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    """The GPU: which models use it, how they share it, and its clock (docs/accelerator.md)."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    """Where the `onnx` and `torch` kinds run: on the server's first CUDA GPU, or on the CPU.

    `cuda`: on the GPU, otherwise the model fails to load. `cpu`: GPUs are hidden from replicas.
    Default auto: on a GPU that the installed runtime supports, if any. A change starts new
    replicas.
    """
    share: int | None = setting(None, "%", 1, 100)
    """Maximum share of the GPU's threads per replica, through CUDA MPS.

    Without an MPS control daemon, replicas take turns (logged once). Default none: all threads. A
    change starts new replicas.
    """
    clock_mhz: int | None = setting(None, "MHz", 1, 20_000)
    """Graphics clock to which the GPU is locked while the server runs.

    Needs root; rejected if it cannot be set. The same for all models. Default none: the driver
    decides.
    """
