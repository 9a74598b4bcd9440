"""Names, limits and description of a workload."""

from __future__ import annotations

from tuner.settings.option import require

NO_ARRIVALS = "only allowed in an open loop (--rate R or --find-rate)"
NO_LOAD = (
    "no load given; use --concurrency N (closed loop), --rate R (open loop), or tune "
    "--find-rate --slo-ms MS, which searches for the highest rate"
)
SCENARIO = "scenario"
"""Name of the arrivals that a scenario defines."""
MAX_IN_FLIGHT = 500
"""Maximum number of requests in flight in an open loop, enough for 1,000/s that take 0.5 s."""
MAX_RATE_PER_S = 1e6
TRACE = "trace:"
"""Prefix of a trace file in `--arrivals`."""
SPREADS = ("poisson", "constant", "burst")
"""Arrival processes other than a trace; the first one is the default."""
KNOWN_ARRIVALS = f"{', '.join(SPREADS)} or trace:FILE"
RATE = "rate"
"""Objective for which evaluations search for the highest rate."""


def workload_in_words(
    concurrency: int,
    client_batch: int,
    *,
    rate_per_s: float | None = None,
    arrivals: str | None = None,
    objective: str | None = None,
    offered_per_s: float | None = None,
) -> str:
    """Describe a workload, for the end of a sentence; `rate_per_s` is None in a closed loop."""
    batched = f", {client_batch} items in each request" if client_batch > 1 else ""
    kind = (arrivals or SPREADS[0]).partition(":")[0]
    if objective == RATE:
        return f"the highest rate ({kind} arrivals){batched}"
    if rate_per_s is None:
        return f"concurrency {concurrency}{batched}"
    if arrivals == SCENARIO:
        if offered_per_s is None:
            return f"{rate_in_words(rate_per_s)} of the scenario"
        asked = rate_in_words(rate_per_s).partition(" ")[0]
        return f"{rate_in_words(offered_per_s)} (the scenario's file says {asked})"
    return f"{rate_in_words(rate_per_s)} ({kind} arrivals){batched}"


def rate_in_words(rate_per_s: float) -> str:
    """Format a rate, with at least three digits."""
    number = f"{rate_per_s:,.0f}" if rate_per_s >= 100 else f"{rate_per_s:.3g}"
    return f"{number} requests/s"


def is_trace(arrivals: str | None) -> bool:
    """Whether arrivals come from a trace file."""
    return arrivals is not None and arrivals.startswith(TRACE)


def check_arrivals(rate: float | None, arrivals: str | None) -> None:
    """Raise UsageError if the rate is out of range or the arrival process is unknown."""
    require(
        rate is None or 0 < rate <= MAX_RATE_PER_S,
        "--rate",
        rate if rate is None else f"{rate:g}",
        f"requests a second, above 0 and at most {MAX_RATE_PER_S:,.0f}",
    )
    is_known = arrivals is None or arrivals in (*SPREADS, SCENARIO)
    require(
        is_known or (is_trace(arrivals) and arrivals != TRACE),
        "--arrivals",
        arrivals,
        KNOWN_ARRIVALS,
    )
