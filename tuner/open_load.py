"""The open loop that settings ask for, with its trace read.

In: settings of the target. Out: an `OpenLoad`, or None of a closed loop. Reads the file of a trace, and
nothing else.
"""

from __future__ import annotations

import pathlib
from typing import cast

from tuner.settings import SPREADS, TRACE, TargetSettings, is_trace
from tuner.traffic import arrivals, trace_file
from tuner.traffic.plan import OpenLoad


def open_load_of(
    target: TargetSettings, *, seed: int = 0, rate_per_s: float | None = None
) -> OpenLoad | None:
    """The open loop of a target; None where it is a closed one.

    Args:
        target: settings, whose ranges were checked.
        seed: of random arrivals.
        rate_per_s: where the target has none, and it is an open loop all the same.

    Raises:
        WrongUse: the trace cannot be read.
    """
    rate = target.rate or rate_per_s
    if target.scenario is not None:
        assert rate is not None, "a scenario has its rate"
        return OpenLoad(rate_per_s=rate, spread="listed", seed=seed)  # whoever sends it lists it
    if is_trace(target.arrivals):
        assert target.arrivals is not None
        offsets_s = trace_file.read(pathlib.Path(target.arrivals.removeprefix(TRACE)))
        rate = rate or arrivals.traced_rate(offsets_s)
        return OpenLoad(rate_per_s=rate, spread="trace", offsets_s=offsets_s)
    if rate is None:
        return None
    spread = cast("arrivals.Spread", target.arrivals or SPREADS[0])  # one of `SPREADS`
    return OpenLoad(rate_per_s=rate, spread=spread, seed=seed)
