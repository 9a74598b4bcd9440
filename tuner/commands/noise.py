"""What `tune doctor --noise` says: where the noise comes from, how long a trial should be, what can be shown.

In: a `Pilot`. Out: a rich renderable for a person, plain data for a program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner import pilot
from tuner.commands.study import finite
from tuner.measurement.nested import Component
from tuner.pilot import Pilot
from tuner.progress import short_names
from tuner.report import wording
from tuner.values import Interval

ESTIMATOR = "analysis of variance (Henderson III), 95 % intervals by Williams and Tukey"
LESS_USEFUL = 1.1
"""Error of the study's own length over the least, from which another is advised."""


def text(found: Pilot, *, usual_s: float) -> rich.console.RenderableType:
    """For a person.

    Args:
        found: what was measured.
        usual_s: length of a trial where nothing else is said.
    """
    head = (
        f"{found.model} at {wording.plural(found.concurrency, 'concurrent request')}: "
        f"{wording.plural(len(found.used), 'configuration')}, "
        f"{wording.plural(sum(own.launches for own in found.pooled.own), 'launch')}"
    )
    parts: list[rich.console.RenderableType] = [rich.text.Text(head, style="bold")]
    parts += [rich.text.Text(line, style="yellow") for line in _left_out(found)]
    parts += ["", _sources(found), rich.text.Text(f"({ESTIMATOR})", style="dim")]
    parts += [rich.text.Text(line) for line in _drift(found)]
    parts += ["", _own(found), rich.text.Text(_weights(found), style="dim")]
    parts += ["", _lengths(found)]
    parts += [rich.text.Text(line) for line in _trial(found, usual_s)]
    parts.append("")
    parts += [rich.text.Text(line) for line in _gains(found)]
    return rich.console.Group(*parts)


def as_json(found: Pilot) -> dict[str, Any]:
    """For a program, every launch with its blocks included."""
    data: dict[str, Any] = finite(dataclasses.asdict(dataclasses.replace(found, tried=())))
    data["default"] = dict(found.default)
    data["configurations"] = [dict(cell) for cell in found.configurations]
    data["tried"] = [finite(dataclasses.asdict(one)) for one in found.tried]
    data["estimator"] = ESTIMATOR
    return data


def _left_out(found: Pilot) -> Iterator[str]:
    if found.failed:
        yield f"{wording.plural(found.failed, 'launch')} failed and tell nothing"
    if found.disturbed:
        yield (
            f"{wording.plural(found.disturbed, 'launch')} left out: the host took more than 5 % of the "
            "machine meanwhile"
        )


def _sources(found: Pilot) -> rich.table.Table:
    made = _table("differences between", "standard deviation", "95 % interval", "degrees")
    parts = found.components
    rows: tuple[tuple[str, Component], ...] = (
        (f"blocks of {found.block_s:g} s of one launch", parts.block),
        ("launches of one configuration", parts.launch),
        ("rounds: the time", parts.time),
    )
    for name, part in rows:
        made.add_row(name, _share(part.sd), _interval(part.interval), str(part.degrees))
    return made


def _drift(found: Pilot) -> Iterator[str]:
    drift = found.components.drift
    took_s = found.tried[-1].started_at - found.tried[0].started_at
    way = "slower" if drift.change >= 0 else "quicker"
    line = (
        f"from the first to the last launch, {wording.duration(took_s)}, all became "
        f"{_share(abs(drift.change))} {way}"
    )
    low, high = drift.interval.low, drift.interval.high
    if low is None or high is None or Interval(low=1 + low, high=1 + high).is_vague:
        yield f"{line}; the rounds are too few to tell"
    else:
        yield f"{line} (95 % interval: {100 * low:+.1f} % to {100 * high:+.1f} %)"
    if found.components.time.sd > found.components.launch.sd:
        yield (
            "the time changes more than launches do: compare by pairs, and mistrust what was measured an "
            "hour apart"
        )


def _own(found: Pilot) -> rich.table.Table:
    made = _table(
        "configuration", "mean", "launches", "blocks: own", "pooled", "launches: own", "pooled"
    )
    short = short_names(found.default)
    for place, own in zip(found.used, found.pooled.own, strict=True):
        cell = found.configurations[place]
        changed = [
            f"{short.get(name, name)}={wording.knob_value(value)}"
            for name, value in cell.items()
            if found.default.get(name) != value
        ]
        made.add_row(
            " ".join(changed) or "the default",
            f"{wording.number(own.mean)} ms",
            str(own.launches),
            *map(
                _share,
                (own.block_sd, own.pooled_block_sd, own.launch_sd, own.pooled_launch_sd),
            ),
        )
    return made


def _weights(found: Pilot) -> str:
    def told(weight: float) -> str:
        return "wholly" if math.isinf(weight) else f"as {weight:.0f} degrees of freedom"

    return (
        "(a configuration's own figures are rough; drawn to the common ones, which count "
        f"{told(found.pooled.block_weight)} for blocks, {told(found.pooled.launch_weight)} for launches)"
    )


def _lengths(found: Pilot) -> rich.table.Table:
    made = _table(
        "length of a trial",
        "one launch errs by",
        f"launches in {pilot.SPENT_S:g} s",
        "together they err by",
    )
    for one in found.lengths:
        made.add_row(
            f"{one.seconds:g} s",
            _share(one.launch_error),
            f"{one.launches:.0f}",
            _share(one.error),
        )
    return made


def _trial(found: Pilot, usual_s: float) -> Iterator[str]:
    yield f"a launch takes {found.overhead_s:.1f} s beside what it measures"
    if math.isinf(found.useful_s):
        yield "launches were not seen to differ: a longer trial tells as much as more of them"
        return
    parts = found.components
    lost = parts.error_after(
        pilot.SPENT_S, seconds=usual_s, overhead_s=found.overhead_s
    ) / parts.error_after(pilot.SPENT_S, seconds=found.recommended_s, overhead_s=found.overhead_s)
    yield f"a trial tells most for its time at {found.useful_s:.2g} s"
    if lost < LESS_USEFUL:
        yield f"the usual {usual_s:g} s are as good, within {_share(max(0.0, lost - 1))} of error"
    else:
        yield f"--seconds {found.recommended_s:g} leaves {_share(1 - 1 / lost)} less error than the usual {usual_s:g} s"


def _gains(found: Pilot) -> Iterator[str]:
    for one in found.gains:
        yield (
            f"{wording.plural(one.pairs, 'pair')} of launches are likely (80 %) to show gains from "
            f"{_share(one.smallest)}; from {_share(one.pessimistic)} if launches differ as much as their "
            "interval allows"
        )


def _table(*titles: str) -> rich.table.Table:
    made = rich.table.Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        made.add_column(title, justify="right" if place else "left", overflow="fold")
    return made


def _share(share: float) -> str:
    return wording.percent(share)


def _interval(ends: Interval) -> str:
    if ends.low is None or ends.high is None:
        return wording.interval(ends)
    return f"{_share(ends.low)} to {_share(ends.high)}"
