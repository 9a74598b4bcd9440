"""Machine and workload that a search space must know."""

from __future__ import annotations

import dataclasses

MACHINE_SYMBOLS = ("machine.cores", "machine.memory_mb")
ENVIRONMENT_SYMBOLS = (*MACHINE_SYMBOLS, "concurrency", "client_batch")
"""Names that constraints may use besides knobs."""
VARIANT = "model.variant"
ACCURACY = "model.accuracy"
"""Measured accuracy of the variant; constraints may name it if the knob is searched."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that serves."""

    cores: int
    """Cores that this process may use."""
    memory_mb: int
    """MiB that all replicas may use together."""
    gpu_clocks_mhz: tuple[int, ...] = ()
    no_clocks: str = "no GPU of this machine offers clocks to lock"
    no_sharing: str = "no CUDA MPS control daemon runs on this machine"
    """Why replicas cannot share the GPU; empty if they can."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the workload for tuning."""

    concurrency: int
    """Requests in flight: constant in a closed loop, a maximum in an open one."""
    machine: Machine
    variants: tuple[tuple[str, float | None], ...] | None = ()
    """Variants with accuracy from 0 to 1 or None; None for another engine's unknown knobs."""
    client_batch: int = 1
    rate_per_s: float | None = None
    """Requests due per second (open loop); None: closed loop."""

    @property
    def items(self) -> int:
        """Items in flight; in an open loop, at most."""
        return self.concurrency * self.client_batch

    def symbols(self) -> dict[str, int]:
        """Return values of `ENVIRONMENT_SYMBOLS`."""
        machine = (self.machine.cores, self.machine.memory_mb)
        values = (*machine, self.concurrency, self.client_batch)
        return dict(zip(ENVIRONMENT_SYMBOLS, values, strict=True))
