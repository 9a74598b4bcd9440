"""Machine and workload on which a search space depends."""

from __future__ import annotations

import dataclasses

MACHINE_SYMBOLS = ("machine.cores", "machine.memory_mb")
ENVIRONMENT_SYMBOLS = (*MACHINE_SYMBOLS, "concurrency", "client_batch")
"""Names that constraints may use in addition to knobs."""
VARIANT = "model.variant"
ACCURACY = "model.accuracy"
"""Measured accuracy of the variant; constraints may name it if that knob is searched."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine that serves the model."""

    cores: int
    """Number of cores that this process may use."""
    memory_mb: int
    """MiB that all replicas may use together."""
    gpu_clocks_mhz: tuple[int, ...] = ()
    no_clocks: str = "no GPU of this machine offers clocks to lock"
    no_sharing: str = "no CUDA MPS control daemon runs on this machine"
    """Why replicas cannot share the GPU; empty if they can."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Machine and workload to tune for."""

    concurrency: int
    """Requests in flight: constant in a closed loop, the maximum in an open one."""
    machine: Machine
    variants: tuple[tuple[str, float | None], ...] | None = ()
    """Variants with accuracy (0 to 1 or None); None if another engine's are unknown."""
    client_batch: int = 1
    rate_per_s: float | None = None
    """Requests due per second in an open loop; None in a closed one."""

    @property
    def items(self) -> int:
        """Number of items in flight; in an open loop, the maximum."""
        return self.concurrency * self.client_batch

    def symbols(self) -> dict[str, int]:
        """Return the values of `ENVIRONMENT_SYMBOLS`."""
        machine = (self.machine.cores, self.machine.memory_mb)
        values = (*machine, self.concurrency, self.client_batch)
        return dict(zip(ENVIRONMENT_SYMBOLS, values, strict=True))
