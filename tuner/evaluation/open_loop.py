"""Open-loop plan of a target's settings."""

from __future__ import annotations

import pathlib
from typing import cast

from tuner.load_generator import arrivals, trace_file
from tuner.load_generator.plan import OpenLoopPlan
from tuner.settings.target import TargetSettings
from tuner.settings.workload import SPREADS, TRACE, is_trace


def make_open_loop_plan(
    target: TargetSettings, *, seed: int = 0, rate_per_s: float | None = None
) -> OpenLoopPlan | None:
    """Return the open-loop plan of a target, or None for a closed loop.

    Args:
        seed: for random arrivals.
        rate_per_s: for an open loop without a rate of its own.

    Raises:
        UsageError: the trace is unreadable.
    """
    rate = target.rate or rate_per_s
    if target.scenario is not None:
        assert rate is not None, "a scenario has its rate"
        return OpenLoopPlan(
            rate_per_s=rate, spread="listed", seed=seed
        )  # the sender lists arrivals
    if is_trace(target.arrivals):
        assert target.arrivals is not None
        offsets_s = trace_file.read(pathlib.Path(target.arrivals.removeprefix(TRACE)))
        rate = rate or arrivals.traced_rate(offsets_s)
        return OpenLoopPlan(rate_per_s=rate, spread="trace", offsets_s=offsets_s)
    if rate is None:
        return None
    spread = cast("arrivals.Spread", target.arrivals or SPREADS[0])
    return OpenLoopPlan(rate_per_s=rate, spread=spread, seed=seed)
