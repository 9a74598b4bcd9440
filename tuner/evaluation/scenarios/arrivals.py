"""Seeded arrivals for many models, the same for every scheduler.

`serverless` follows cloud functions (Shahrad et al., "Serverless in the Wild", USENIX ATC 2020):
popularity spans orders of magnitude, timers call three models in ten, and the others get clusters
of requests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tuner.evaluation.scenarios.values import Scenario, Stream
from tuner.evaluation.simulation.pool import EmulatedRequest
from tuner.load_generator.arrivals import BURST_FACTOR, BURST_PERIOD_S, BURST_S

Array = NDArray[np.float64]
Places = NDArray[np.intp]

POPULARITY_SPREAD = 2.5
"""Standard deviation of a serverless model's log rate: a tenth exceed 25 times the median."""
PERIODIC_SHARE = 0.3
MAX_VARIATION = 4.0
"""Largest coefficient of variation of the times between a model's requests."""
PAUSE_S = 0.001
"""Minimum time between a client's requests, even after an immediate rejection."""
CALM = (1.0 - BURST_FACTOR * BURST_S / BURST_PERIOD_S) / (1.0 - BURST_S / BURST_PERIOD_S)
"""Rate between bursts, relative to the mean rate."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScenarioArrivals:
    """All requests of a scenario."""

    at_s: Array  # (n,) ascending
    models: Places  # (n,) by their place among all models
    streams: Places  # (n,)
    scenario: Scenario

    def __iter__(self) -> Iterator[EmulatedRequest]:
        """Yield the timed requests, and each client's first request."""
        streams = self.scenario.streams
        for at_s, model, place in zip(
            self.at_s.tolist(), self.models.tolist(), self.streams.tolist(), strict=True
        ):
            stream = streams[place]
            yield EmulatedRequest(
                at_s=at_s,
                model=model,
                objective_s=stream.deadline.at(at_s),
                items=stream.items,
                client=model if stream.clients else -1,
                stream=place,
            )

    def next_request(self, request: EmulatedRequest, now_s: float) -> EmulatedRequest | None:
        """Return the client's next request, or None after the scenario's end."""
        if now_s >= self.scenario.seconds:
            return None
        stream = self.scenario.streams[request.stream]
        at_s = max(now_s, request.at_s + PAUSE_S)
        return dataclasses.replace(request, at_s=at_s, objective_s=stream.deadline.at(at_s))


def draw_arrivals(scenario: Scenario, draw: int = 0) -> ScenarioArrivals:
    """Return the requests of a scenario; each stream has its own random numbers.

    Each realisation `draw` keeps the rates and changes the times; a trace starts at another point.
    """
    parts = []
    for place, stream in enumerate(scenario.streams):
        rng = np.random.default_rng([scenario.seed, place])
        times = rng if draw == 0 else np.random.default_rng([scenario.seed, place, draw])
        copies = scenario.group(stream.group).copies
        if draw and stream.trace:
            trace = rotate_trace(stream.trace, scenario.seconds - stream.from_s, times)
            stream = dataclasses.replace(stream, trace=trace)  # noqa: PLW2901 - the same, later
        at_s, models = due(stream, copies, scenario.seconds, rng, times)
        first = scenario.first_of(stream.group)
        parts.append((at_s, models + first, np.full(len(at_s), place, dtype=np.intp)))
    at_s = np.concatenate([part[0] for part in parts])
    order = np.argsort(at_s, kind="stable")
    return ScenarioArrivals(
        at_s[order],
        np.concatenate([part[1] for part in parts])[order],
        np.concatenate([part[2] for part in parts])[order],
        scenario,
    )


def due(
    stream: Stream,
    copies: int,
    seconds: float,
    rng: np.random.Generator,
    times: np.random.Generator,
) -> tuple[Array, Places]:
    """Return ascending times in seconds (n,) and model indexes (n,) of a stream's requests.

    `rng` draws the models' rates, and `times` draws the arrivals.
    """
    if stream.clients:
        models = np.repeat(np.arange(copies), stream.clients)
        return np.full(len(models), stream.from_s), models
    if stream.arrivals == "trace":
        at_s = np.array([one[0] for one in stream.trace], dtype=float) + stream.from_s
        models = np.array([one[1] for one in stream.trace], dtype=np.intp)
        return at_s[at_s < seconds], models[at_s < seconds]
    span_s = seconds - stream.from_s
    if stream.arrivals == "serverless":
        at_s, models = _serverless(stream.rate_per_s, copies, span_s, rng, times)
        return at_s + stream.from_s, models
    at_s = _times(stream, span_s, times)
    return at_s + stream.from_s, _draw_models(stream, at_s, copies, times)


def rotate_trace(
    trace: tuple[tuple[float, int], ...], span_s: float, rng: np.random.Generator
) -> tuple[tuple[float, int], ...]:
    """Return a trace that starts at a random point and wraps around.

    If no request would be due within `span_s`, it starts at the next request instead.
    """
    at_s = np.array([one[0] for one in trace])
    last_s = float(at_s[-1])
    # The mean distance separates the last request from the first.
    period_s = last_s + last_s / max(1, len(trace) - 1) or span_s
    begin_s = rng.random() * period_s
    if not ((at_s - begin_s) % period_s < span_s).any():
        begin_s = float(at_s[np.searchsorted(at_s, begin_s) % len(trace)])
    later_s = (at_s - begin_s) % period_s
    return tuple((float(later_s[place]), trace[place][1]) for place in np.argsort(later_s))


def _times(stream: Stream, span_s: float, rng: np.random.Generator) -> Array:
    rate = stream.rate_per_s
    if stream.arrivals == "constant":
        at_s = np.asarray((np.arange(math.ceil(rate * span_s)) + rng.random()) / rate, dtype=float)
        return at_s[at_s < span_s]
    if stream.arrivals == "poisson":
        return _poisson(rate, span_s, rng)
    at_s = _poisson(BURST_FACTOR * rate, span_s, rng)
    in_burst = (at_s + rng.random() * BURST_PERIOD_S) % BURST_PERIOD_S < BURST_S
    kept = in_burst | (rng.random(len(at_s)) < CALM / BURST_FACTOR)
    return at_s[kept]


def _poisson(rate: float, span_s: float, rng: np.random.Generator) -> Array:
    return np.sort(rng.random(rng.poisson(rate * span_s)) * span_s)


def _draw_models(stream: Stream, at_s: Array, copies: int, rng: np.random.Generator) -> Places:
    if stream.active_every_s:
        active = np.minimum(copies, 1 + (at_s / stream.active_every_s).astype(np.intp))
        return (rng.random(len(at_s)) * active).astype(np.intp)
    if not stream.exponent:
        return rng.integers(copies, size=len(at_s))
    weights = np.arange(1, copies + 1, dtype=float) ** -stream.exponent
    return rng.choice(copies, size=len(at_s), p=weights / weights.sum())


def _serverless(
    rate: float,
    copies: int,
    span_s: float,
    rng: np.random.Generator,
    times: np.random.Generator,
) -> tuple[Array, Places]:
    weights = np.exp(POPULARITY_SPREAD * rng.normal(size=copies))
    rates = rate * weights / weights.sum()
    is_periodic = rng.random(copies) < PERIODIC_SHARE
    variation = rng.uniform(1.0, MAX_VARIATION, size=copies)
    found = []
    for place in range(copies):
        mean_s = 1.0 / rates[place]
        if is_periodic[place]:
            at_s = np.arange(times.random() * mean_s, span_s, mean_s)
        else:
            at_s = _renewals(mean_s, float(variation[place]), span_s, times)
        found.append((at_s, np.full(len(at_s), place, dtype=np.intp)))
    every_s = np.concatenate([at_s for at_s, _ in found])
    order = np.argsort(every_s, kind="stable")
    return every_s[order], np.concatenate([models for _, models in found])[order]


def _renewals(mean_s: float, variation: float, span_s: float, rng: np.random.Generator) -> Array:
    """Return times with gamma-distributed gaps, starting at a random moment within a gap."""
    shape = variation**-2
    found = []
    # The start falls into an interval in proportion to its length.
    now_s = rng.random() * rng.gamma(shape + 1.0, mean_s / shape)
    while now_s < span_s:
        steps = rng.gamma(shape, mean_s / shape, size=max(16, int(1.2 * (span_s - now_s) / mean_s)))
        times = now_s + np.concatenate([[0.0], np.cumsum(steps)])
        found.append(times[:-1])
        now_s = float(times[-1])
    at_s = np.concatenate(found) if found else np.empty(0)
    return at_s[at_s < span_s]
