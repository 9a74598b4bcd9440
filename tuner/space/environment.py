"""What a search space must know of the world: the machine and the load.

In: figures that the hub read (cores, MiB, MHz). Out: two frozen values, and the symbols that
constraints may name. Reads nothing itself.
"""

from __future__ import annotations

import dataclasses

MACHINE_SYMBOLS = ("machine.cores", "machine.memory_mb")
ENVIRONMENT_SYMBOLS = (*MACHINE_SYMBOLS, "concurrency", "client_batch")
"""Names that a constraint may use beside the knobs."""
VARIANT = "model.variant"
"""The knob that chooses one of a model's forms."""
ACCURACY = "model.accuracy"
"""What a constraint may name where that knob is searched: the measured accuracy of the form."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that serves."""

    cores: int
    """Cores that this process may use, not those that are built in."""
    memory_mb: int
    """MiB that replicas may use together."""
    gpu_clocks_mhz: tuple[int, ...] = ()
    """Clocks that the GPU can be locked to; empty without a GPU that offers them."""
    no_clocks: str = "no GPU of this machine offers clocks to lock"
    """Why there are none."""
    no_sharing: str = "no CUDA MPS control daemon runs on this machine"
    """Why replicas cannot be given a share of the GPU; empty where they can."""

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"a machine of {self.cores} cores, expected at least 1")
        if self.memory_mb < 1:
            raise ValueError(f"a machine of {self.memory_mb} MiB, expected at least 1")
        if any(clock < 1 for clock in self.gpu_clocks_mhz):
            raise ValueError(f"GPU clocks {self.gpu_clocks_mhz}, expected MHz above 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, and the load under which it is tuned."""

    concurrency: int
    """Requests in flight: at any time in a closed loop, at most in an open one."""
    machine: Machine
    variants: tuple[tuple[str, float | None], ...] | None = ()
    """Forms of the model, each with its measured accuracy from 0 to 1, None where none was measured; None: of
    another engine, of whose knobs nothing is known."""
    client_batch: int = 1
    """Items in each request."""
    rate_per_s: float | None = None
    """Requests that are due each second, whatever becomes of the others (open loop); None: a closed loop."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency {self.concurrency}, expected at least 1")
        if self.client_batch < 1:
            raise ValueError(f"client_batch {self.client_batch}, expected at least 1")
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise ValueError(f"rate_per_s {self.rate_per_s}, expected above 0")

    @property
    def items(self) -> int:
        """Items in flight at any time; of an open loop, at most."""
        return self.concurrency * self.client_batch

    def symbols(self) -> dict[str, int]:
        """Values of `ENVIRONMENT_SYMBOLS`."""
        values = (
            self.machine.cores,
            self.machine.memory_mb,
            self.concurrency,
            self.client_batch,
        )
        return dict(zip(ENVIRONMENT_SYMBOLS, values, strict=True))
