"""Outcomes of a scenario's requests, emulated or served; each request counts once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tuner.evaluation.scenarios.values import Scenario

QUANTILES = (0.5, 0.99, 0.999, 1.0)
FAR_S = 0.005
"""Lateness that message latency cannot explain."""


class RequestOutcome(NamedTuple):
    """Outcome of one request."""

    stream: int
    at_s: float
    deadline_s: float
    done_s: float
    refused: str | None
    at_once: bool = False
    """Whether the request was rejected on arrival."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Request counts by outcome."""

    requests: int
    in_time: int
    late: int
    far_late: int
    """Number of requests over 5 ms late."""
    refused_at_once: Mapping[str, int]
    """Mapping from reason to number of requests rejected on arrival."""
    dropped: Mapping[str, int]
    """Mapping from reason to number of requests rejected after admission."""
    latencies_ms: tuple[float, ...]
    """Latencies of responses at `QUANTILES`; empty if there are no responses."""

    @property
    def admitted(self) -> int:
        """Number of requests that were not rejected on arrival."""
        return self.requests - sum(self.refused_at_once.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """Result of one run of a scenario."""

    scenario: str
    seconds: float
    """Time until the last outcome, or the scenario's duration if longer."""
    streams: Mapping[str, Counts]
    by_deadline: Mapping[str, Mapping[float, Counts]]
    """Counts by stream and deadline in ms, for streams whose deadlines grow."""

    @property
    def requests(self) -> int:
        """Number of requests in all streams."""
        return sum(one.requests for one in self.streams.values())

    @property
    def goodput_per_s(self) -> float:
        """Responses per second that met their deadlines."""
        return sum(one.in_time for one in self.streams.values()) / self.seconds


def summarise(scenario: Scenario, ends: Sequence[RequestOutcome]) -> ScenarioResult:
    """Summarise the outcomes of a run."""
    by_stream: dict[int, list[RequestOutcome]] = {
        place: [] for place in range(len(scenario.streams))
    }
    for end in ends:
        by_stream[end.stream].append(end)
    by_deadline = {}
    for place, stream in enumerate(scenario.streams):
        if stream.deadline.factor == 1.0:
            continue
        by_size: dict[float, list[RequestOutcome]] = {}
        for end in by_stream[place]:
            by_size.setdefault(end.deadline_s, []).append(end)
        by_deadline[stream.name] = {1e3 * size: counts(some) for size, some in by_size.items()}
    return ScenarioResult(
        scenario=scenario.name,
        seconds=max([scenario.seconds, *(end.done_s for end in ends)]),
        streams={
            stream.name: counts(by_stream[place]) for place, stream in enumerate(scenario.streams)
        },
        by_deadline=by_deadline,
    )


def counts(ends: Sequence[RequestOutcome]) -> Counts:
    """Count requests by outcome."""
    at_once: collections.Counter[str] = collections.Counter()
    dropped: collections.Counter[str] = collections.Counter()
    took_ms = []
    late = far_late = 0
    for end in ends:
        if end.refused is None:
            over_s = end.done_s - (end.at_s + end.deadline_s)
            late += over_s > 0.0
            far_late += over_s > FAR_S
            took_ms.append(1e3 * (end.done_s - end.at_s))
        else:
            (at_once if end.at_once else dropped)[end.refused] += 1
    quantiles = np.quantile(took_ms, QUANTILES, method="higher").tolist() if took_ms else []
    return Counts(
        requests=len(ends),
        in_time=len(took_ms) - late,
        late=late,
        far_late=far_late,
        refused_at_once=dict(at_once),
        dropped=dict(dropped),
        latencies_ms=tuple(quantiles),
    )
