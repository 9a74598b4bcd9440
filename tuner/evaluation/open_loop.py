"""Open-loop plan made from a target's settings, and trace files of arrivals."""

from __future__ import annotations

import math
import pathlib
from typing import cast

from serving.system import user_files
from tuner.errors import UsageError
from tuner.load_generator import arrivals
from tuner.load_generator.plan import OpenLoopPlan
from tuner.settings.target import TargetSettings
from tuner.settings.workload import SPREADS, TRACE, is_trace

MAX_ARRIVALS = 100_000
MAX_BYTES = 4 << 20


def make_open_loop_plan(
    target: TargetSettings, *, seed: int = 0, rate_per_s: float | None = None
) -> OpenLoopPlan | None:
    """Return a target's open-loop plan (by default at `rate_per_s`), or None for a closed loop."""
    rate = target.rate or rate_per_s
    if target.scenario is not None:
        assert rate is not None, "a scenario has its rate"
        # The sender lists the arrivals.
        return OpenLoopPlan(rate_per_s=rate, spread="listed", seed=seed)
    if is_trace(target.arrivals):
        assert target.arrivals is not None
        offsets_s = read_trace(pathlib.Path(target.arrivals.removeprefix(TRACE)))
        rate = rate or arrivals.traced_rate(offsets_s)
        return OpenLoopPlan(rate_per_s=rate, spread="trace", offsets_s=offsets_s)
    if rate is None:
        return None
    spread = cast("arrivals.Spread", target.arrivals or SPREADS[0])
    return OpenLoopPlan(rate_per_s=rate, spread=spread, seed=seed)


def read_trace(path: pathlib.Path) -> tuple[float, ...]:
    """Read ascending seconds from a text file, one per line, skipping blank lines and # comments.

    Raise UsageError if the file is unreadable or too large, if a time is invalid or earlier than
    the previous one, or if there are fewer than two different times.
    """
    offsets: list[float] = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        given = line.partition("#")[0].strip()
        if not given:
            continue
        if len(offsets) == MAX_ARRIVALS:
            raise UsageError(
                f"trace {path}, line {number}: expected at most {MAX_ARRIVALS:,} arrivals"
            )
        offsets.append(_second(given, f"trace {path}, line {number}"))
        if len(offsets) > 1 and offsets[-1] < offsets[-2]:
            raise UsageError(
                f"trace {path}, line {number}: {given} comes after {offsets[-2]:g}, expected seconds in "
                "ascending order; sort the file"
            )
    try:
        arrivals.traced_rate(offsets)
    except ValueError as error:
        raise UsageError(f"trace {path}: {error}, this one has {len(offsets)}") from None
    return tuple(offsets)


def _text(path: pathlib.Path) -> str:
    try:
        return user_files.text(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"trace {path}: not text (byte {error.start}), expected one second per line"
        ) from error


def _second(given: str, where: str) -> float:
    try:
        second = float(given)
    except ValueError:
        second = math.nan
    if not (math.isfinite(second) and second >= 0):
        raise UsageError(f"{where}: {given[:40]!r} is not a time, expected seconds from 0, as 12.5")
    return second
