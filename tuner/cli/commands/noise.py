"""Output of `tune doctor --noise`: sources of noise and detectable gains."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner.cli.commands import table
from tuner.cli.commands.study import finite
from tuner.lab.noise_analysis import NoiseMeasurement
from tuner.report import formatting
from tuner.study.progress import differences
from tuner.values.plain import to_plain

ESTIMATOR = (
    "restricted likelihood: two Ornstein-Uhlenbeck processes common to all configurations, "
    "evaluations and blocks"
)
MUCH_NEIGHBOUR = 0.02
"""Share of the machine used by other processes above which a hint is printed."""


def text(found: NoiseMeasurement) -> rich.console.RenderableType:
    """Return the result for a terminal."""
    head = (
        f"{found.model} at {formatting.plural(found.concurrency, 'concurrent request')}: "
        f"{formatting.plural(len(found.configurations), 'configuration')}, "
        f"{formatting.plural(len(found.tried) - found.failed, 'evaluation')}"
    )
    parts: list[rich.console.RenderableType] = [rich.text.Text(head, style="bold")]
    parts += [rich.text.Text(line, style="yellow") for line in _left_out(found)]
    parts += ["", _sources(found), rich.text.Text(f"({ESTIMATOR})", style="dim")]
    parts += [rich.text.Text(line) for line in _neighbours(found)]
    parts += ["", _configurations(found), "", _gains(found)]
    return rich.console.Group(*parts)


def as_json(found: NoiseMeasurement) -> dict[str, Any]:
    """Return the result as JSON, including all blocks."""
    data: dict[str, Any] = finite(to_plain(found))
    return {**data, "shares": found.course.shares, "estimator": ESTIMATOR}


def _left_out(found: NoiseMeasurement) -> Iterator[str]:
    if found.failed:
        yield f"{formatting.plural(found.failed, 'evaluation')} failed and are not counted"
    if found.repeated:
        yield (
            f"{formatting.plural(found.repeated, 'evaluation')} measured again, because other "
            "processes took more of the machine than usual"
        )


def _sources(found: NoiseMeasurement) -> rich.table.Table:
    made = table("differences between", "standard deviation", "share of the variance")
    course, part = found.course, found.course.shares
    time_sd = (course.quick.sd**2 + course.slow.sd**2) ** 0.5
    made.add_row("machine drift", formatting.percent(time_sd), formatting.percent(part["time"]))
    for name, process in (("seconds", course.quick), ("minutes", course.slow)):
        made.add_row(
            f"  over {name}: correlation time {formatting.duration(process.forgets_s)}",
            formatting.percent(process.sd),
            formatting.percent(process.sd**2 / course.variance),
        )
    made.add_row(
        "evaluations of one configuration",
        formatting.percent(course.evaluation_sd),
        formatting.percent(part["launch"]),
    )
    made.add_row(
        f"blocks of {found.block_s:g} s in one evaluation",
        formatting.percent(course.block_sd),
        formatting.percent(part["block"]),
    )
    return made


def _neighbours(found: NoiseMeasurement) -> Iterator[str]:
    known = found.foreign_shares
    if not known:
        yield (
            "the CPU use of other processes is unknown: the server's own processes cannot be "
            "identified"
        )
        return
    usual = statistics.median(known)
    line = (
        f"other processes used {formatting.percent(usual)} of the machine in the median evaluation, "
        f"{formatting.percent(max(known))} at most"
    )
    yield f"{line}; check what else runs (top)" if usual > MUCH_NEIGHBOUR else line


def _configurations(found: NoiseMeasurement) -> rich.table.Table:
    made = table("configuration", "mean", "evaluations")
    for place, (cell, mean_ms) in enumerate(zip(found.configurations, found.means_ms, strict=True)):
        evaluations = sum(one.configuration == place and bool(one.blocks_ms) for one in found.tried)
        made.add_row(
            differences(cell, found.default), f"{formatting.number(mean_ms)} ms", str(evaluations)
        )
    return made


def _gains(found: NoiseMeasurement) -> rich.table.Table:
    made = table("gains likely (80 %) to be shown", "a comparison", "a study's verdict")
    for one in found.gains:
        made.add_row(
            f"in {one.spent_s:g} s",
            *(
                "too short" if gain is None else formatting.percent(gain)
                for gain in (one.comparison, one.study)
            ),
        )
    return made
