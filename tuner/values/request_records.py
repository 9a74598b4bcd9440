"""Records of a phase that a load generator ran, as columns."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRecords:
    """Requests in order of completion; times count from the phase's start on a monotonic clock."""

    intended_s: NDArray[np.float64]  # (n,) when due; closed loop: started_s
    started_s: NDArray[np.float64]  # (n,) first byte sent
    finished_s: NDArray[np.float64]  # (n,) last byte received
    status: NDArray[np.int16]  # (n,) HTTP status; 0: connection lost or timeout
    connection: NDArray[np.int32]  # (n,) index of the connection

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len(lengths) > 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.status)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CpuTimeSeries:
    """CPU time of a process during a load phase."""

    at_s: NDArray[np.float64]  # (n,) since the start of the phase, ascending
    used_s: NDArray[np.float64]  # (n,) from any origin

    def between(self, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the linearly interpolated CPU time between each two of k + 1 edges, (k,)."""
        return np.diff(np.interp(edges_s, self.at_s, self.used_s))
