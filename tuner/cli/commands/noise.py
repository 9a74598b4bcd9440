"""Output of `tune doctor --noise`: sources of noise and detectable gains."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner.cli.commands.study import finite
from tuner.lab.noise_analysis import NoiseMeasurement
from tuner.report import formatting
from tuner.study.progress import short_names

ESTIMATOR = "restricted likelihood: two Ornstein-Uhlenbeck processes common to all configurations, launches and blocks"
MUCH_NEIGHBOUR = 0.02
"""Neighbours' share of the machine above which a hint is printed."""


def text(found: NoiseMeasurement) -> rich.console.RenderableType:
    """Return the result for a terminal."""
    head = (
        f"{found.model} at {formatting.plural(found.concurrency, 'concurrent request')}: "
        f"{formatting.plural(len(found.configurations), 'configuration')}, "
        f"{formatting.plural(len(found.tried) - found.failed, 'launch')}"
    )
    parts: list[rich.console.RenderableType] = [rich.text.Text(head, style="bold")]
    parts += [rich.text.Text(line, style="yellow") for line in _left_out(found)]
    parts += ["", _sources(found), rich.text.Text(f"({ESTIMATOR})", style="dim")]
    parts += [rich.text.Text(line) for line in _neighbours(found)]
    parts += ["", _configurations(found), "", _gains(found)]
    return rich.console.Group(*parts)


def as_json(found: NoiseMeasurement) -> dict[str, Any]:
    """Return the result as JSON, including all blocks."""
    data: dict[str, Any] = finite(dataclasses.asdict(dataclasses.replace(found, tried=())))
    data["default"] = dict(found.default)
    data["configurations"] = [dict(cell) for cell in found.configurations]
    data["tried"] = [finite(dataclasses.asdict(one)) for one in found.tried]
    data["shares"] = found.course.shares
    data["estimator"] = ESTIMATOR
    return data


def _left_out(found: NoiseMeasurement) -> Iterator[str]:
    if found.failed:
        yield f"{formatting.plural(found.failed, 'launch')} failed and are not counted"
    if found.repeated:
        yield (
            f"{formatting.plural(found.repeated, 'launch')} measured again, because other "
            "processes took more of the machine than usual"
        )


def _sources(found: NoiseMeasurement) -> rich.table.Table:
    made = _table("differences between", "standard deviation", "share of the variance")
    course, part = found.course, found.course.shares
    time_sd = (course.quick.sd**2 + course.slow.sd**2) ** 0.5
    made.add_row("machine drift", _share(time_sd), _share(part["time"]))
    for name, process in (("seconds", course.quick), ("minutes", course.slow)):
        made.add_row(
            f"  over {name}: correlation time {formatting.duration(process.forgets_s)}",
            _share(process.sd),
            _share(process.sd**2 / course.variance),
        )
    made.add_row(
        "evaluations of one configuration", _share(course.evaluation_sd), _share(part["launch"])
    )
    made.add_row(
        f"blocks of {found.block_s:g} s in one evaluation",
        _share(course.block_sd),
        _share(part["block"]),
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
        f"other processes used {_share(usual)} of the machine in the median evaluation, "
        f"{_share(max(known))} at most"
    )
    yield f"{line}; check what else runs (top)" if usual > MUCH_NEIGHBOUR else line


def _configurations(found: NoiseMeasurement) -> rich.table.Table:
    made = _table("configuration", "mean", "launches")
    short = short_names(found.default)
    for place, (cell, mean_ms) in enumerate(zip(found.configurations, found.means_ms, strict=True)):
        changed = [
            f"{short.get(name, name)}={formatting.knob_value(value)}"
            for name, value in cell.items()
            if found.default.get(name) != value
        ]
        launches = sum(one.configuration == place and bool(one.blocks_ms) for one in found.tried)
        made.add_row(
            " ".join(changed) or "the default", f"{formatting.number(mean_ms)} ms", str(launches)
        )
    return made


def _gains(found: NoiseMeasurement) -> rich.table.Table:
    made = _table("gains likely (80 %) to be shown", "a comparison", "a study's verdict")
    for one in found.gains:
        made.add_row(
            f"in {one.spent_s:g} s",
            *(
                "too short" if gain is None else formatting.percent(gain)
                for gain in (one.comparison, one.study)
            ),
        )
    return made


def _table(*titles: str) -> rich.table.Table:
    made = rich.table.Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        made.add_column(title, justify="right" if place else "left", overflow="fold")
    return made


def _share(share: float) -> str:
    return formatting.percent(share)
