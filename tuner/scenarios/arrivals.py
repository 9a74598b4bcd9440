"""When requests of many models are due: seeded, and the same for every scheduler.

In: a scenario. Out: requests in order of time, and what a client sends when it has its answer. Pure.

`serverless` is shaped like what is known of functions in a cloud (Shahrad et al., "Serverless in the Wild",
USENIX ATC 2020): popularity spans many orders of magnitude, so a few models have most of the requests; some
three in ten are called by timers, at equal distances; of the others many come in clusters, with coefficients
of variation well above 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tuner.scenarios.values import Scenario, Stream
from tuner.simulation.pool import Request
from tuner.traffic.arrivals import BURST_FACTOR, BURST_PERIOD_S, BURST_S

Array = NDArray[np.float64]
Places = NDArray[np.intp]

POPULARITY_SPREAD = 2.5
"""Standard deviation of the logarithm of a serverless model's rate: one in ten is 25 times the median."""
PERIODIC_SHARE = 0.3
MOST_VARIATION = 4.0
"""Largest coefficient of variation of the time between two requests for a model."""
PAUSE_S = 0.001
"""Between two requests of a client at least: one that is refused at once does not ask again at the same instant."""
CALM = (1.0 - BURST_FACTOR * BURST_S / BURST_PERIOD_S) / (1.0 - BURST_S / BURST_PERIOD_S)
"""Rate between bursts over the mean rate."""


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """All requests of a scenario."""

    at_s: Array  # (n,) ascending
    models: Places  # (n,) by their place among all models
    streams: Places  # (n,)
    scenario: Scenario

    def __iter__(self) -> Iterator[Request]:
        """Those that come whatever happens, and the first ones of the clients."""
        streams = self.scenario.streams
        for at_s, model, place in zip(
            self.at_s.tolist(), self.models.tolist(), self.streams.tolist(), strict=True
        ):
            stream = streams[place]
            yield Request(
                at_s=at_s,
                model=model,
                objective_s=stream.deadline.at(at_s),
                items=stream.items,
                client=model if stream.clients else -1,
                stream=place,
            )

    def answered(self, request: Request, now_s: float) -> Request | None:
        """The client's next request, until the end."""
        if now_s >= self.scenario.seconds:
            return None
        stream = self.scenario.streams[request.stream]
        at_s = max(now_s, request.at_s + PAUSE_S)
        return dataclasses.replace(request, at_s=at_s, objective_s=stream.deadline.at(at_s))


def traffic(scenario: Scenario, draw: int = 0) -> Traffic:
    """Of a scenario; every stream has random numbers of its own.

    Args:
        scenario: who is asked for how often.
        draw: which of its many courses: the same models are asked for as often, at other times; 0 is the first.
            A trace has no other times: each draw but the first begins at another place of it.
    """
    parts = []
    for place, stream in enumerate(scenario.streams):
        rng = np.random.default_rng([scenario.seed, place])
        times = rng if draw == 0 else np.random.default_rng([scenario.seed, place, draw])
        copies = scenario.group(stream.group).copies
        if draw and stream.trace:
            trace = rotated(stream.trace, scenario.seconds - stream.from_s, times)
            stream = dataclasses.replace(stream, trace=trace)  # noqa: PLW2901 - the same, later
        at_s, models = due(stream, copies, scenario.seconds, rng, times)
        first = scenario.first_of(stream.group)
        parts.append((at_s, models + first, np.full(len(at_s), place, dtype=np.intp)))
    at_s = np.concatenate([part[0] for part in parts])
    order = np.argsort(at_s, kind="stable")
    return Traffic(
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
    """Seconds (n,), ascending, and models (n,) by their place in the group.

    Args:
        stream: whose requests.
        copies: models of the group.
        seconds: of the scenario.
        rng: of the stream: how often each model is asked for.
        times: when that is; may be the same.
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
    return at_s + stream.from_s, _drawn(stream, at_s, copies, times)


def rotated(
    trace: tuple[tuple[float, int], ...], span_s: float, rng: np.random.Generator
) -> tuple[tuple[float, int], ...]:
    """A trace from another place on, any of them as likely, with what came before it behind its end.

    Where nothing would come in the time that it is asked for, it begins with the next request.

    Args:
        trace: seconds, ascending, and models.
        span_s: for how long it is asked for.
        rng: of the draw.
    """
    at_s = np.array([one[0] for one in trace])
    last_s = float(at_s[-1])
    # After the last request it is as long until the first one again as it is between two.
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


def _drawn(stream: Stream, at_s: Array, copies: int, rng: np.random.Generator) -> Places:
    """A model for each request."""
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
    """Few hot models, many cold ones, and timers."""
    weights = np.exp(POPULARITY_SPREAD * rng.normal(size=copies))
    rates = rate * weights / weights.sum()
    is_periodic = rng.random(copies) < PERIODIC_SHARE
    variation = rng.uniform(1.0, MOST_VARIATION, size=copies)
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
    """Times whose distances are gamma distributed; the first lies anywhere between two of them."""
    shape = variation**-2
    found = []
    # The interval in which the beginning falls is one of the long ones: its length is weighted by itself.
    now_s = rng.random() * rng.gamma(shape + 1.0, mean_s / shape)
    while now_s < span_s:
        steps = rng.gamma(shape, mean_s / shape, size=max(16, int(1.2 * (span_s - now_s) / mean_s)))
        times = now_s + np.concatenate([[0.0], np.cumsum(steps)])
        found.append(times[:-1])
        now_s = float(times[-1])
    at_s = np.concatenate(found) if found else np.empty(0)
    return at_s[at_s < span_s]
