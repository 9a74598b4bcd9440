"""`tune doctor`: check whether this machine can measure, and what gains it can detect."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner.cli.commands import CommandResult, options, table
from tuner.cli.commands.study import finite
from tuner.errors import UsageError
from tuner.lab import doctor, fleet_check, noise_measurement
from tuner.lab.doctor import Finding
from tuner.lab.fleet_check import FleetCheck
from tuner.lab.noise_analysis import NoiseMeasurement
from tuner.report import formatting
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.option import check_range
from tuner.settings.option import options as options_of
from tuner.settings.search import SearchSettings
from tuner.settings.study import GROUPS, StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import problem
from tuner.study.interruption import resumable
from tuner.study.progress import Terminal, differences
from tuner.values.plain import to_plain

MIN_EVALUATIONS = 2
USUAL_EVALUATIONS = 5
ONLY_NOISE_MEASUREMENT = {
    "target": ["client_batch", "space", "payload", "engine", "hook", "spawner"],
    "measurement": ["warmup_s", "timeout_s", "pairs"],
}
"""Study settings that the noise measurement accepts."""
DECLARED = ("trust", "shape", "values")
"""Model settings that are always accepted."""
MIN_OF_NOISE_MEASUREMENT = 2
"""Minimum number of configurations and of evaluations; a single one shows no difference."""
ESTIMATOR = (
    "restricted likelihood: two Ornstein-Uhlenbeck processes common to all configurations, "
    "evaluations and blocks"
)
MUCH_NEIGHBOUR = 0.02
"""Share of the machine used by other processes above which a hint is printed."""
STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    told = "model of the noise measurement; default echo"
    options.add_value(parser, "--model", "NAME|FILE", told, default="echo")
    told = "requests in flight; default 8"
    options.add_value(parser, "--concurrency", "N", told, parse=int, default=8)
    options.add_value(
        parser,
        "--evaluations",
        "COUNT",
        "evaluations of the noise measurement, about 4 s each; 0 skips it; with --noise, "
        "of each configuration; default 5, with --noise 75, about 5 minutes in total",
        parse=int,
    )
    options.add_flag(
        parser,
        "--clean",
        "remove control groups, processes, folders, containers and GPU clocks left by "
        "dead servers, without measuring; default: only check",
    )
    _add_noise_arguments(parser)
    told = (
        "check these machines of a Ray cluster, as for a study's --workers: what each can do, whether "
        "they are alike, and how much their speeds differ (docs/machines.md); default: this machine"
    )
    options.add_value(parser, "--workers", "N", told)
    options.add_group(parser, "target", only=DECLARED)
    for group, names in ONLY_NOISE_MEASUREMENT.items():
        options.add_group(parser, group, only=names)


def _add_noise_arguments(parser: argparse.ArgumentParser) -> None:
    nested = parser.add_argument_group("the noise measurement")
    options.add_flag(
        nested,
        "--noise",
        "evaluate several configurations repeatedly, and report the noise of machine "
        "drift, evaluations and blocks, and which gains can be shown in which time "
        "(about 5 minutes); default: one configuration, half a minute",
    )
    told = "configurations evaluated: the default and others of the faster half; default 4"
    options.add_value(nested, "--configurations", "COUNT", told, parse=int)
    told = "seed of the configurations and their order; default 0"
    options.add_value(nested, "--seed", "S", told, parse=int)
    told = "seconds measured per evaluation, as in a study; default 0.6"
    options.add_value(nested, "--seconds", "S", told, parse=float, default=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    check_range("--concurrency", arguments.concurrency, "a whole number from 1", low=1)
    order = None
    if arguments.noise:
        order = _order(arguments)
    else:
        _reject_noise_options(arguments)
    evaluations = USUAL_EVALUATIONS if arguments.evaluations is None else arguments.evaluations
    if evaluations and evaluations < MIN_EVALUATIONS:
        raise UsageError(f"--evaluations {evaluations}: expected 0, or a whole number from 2")
    if arguments.clean:
        return _clean()
    if arguments.workers is not None:
        return _check_machines(arguments, evaluations, terminal)
    if evaluations and order is None:
        is_trusted = hasattr(arguments, "trust")
        # Report a wrong name before all checks.
        problem.find_spec(arguments.model, is_trusted=is_trusted)
    findings = doctor.findings()
    parts: list[rich.console.RenderableType] = [_line(finding) for finding in findings]
    data: dict[str, object] = {"findings": to_plain(findings)}
    if order is not None:
        found = noise_measurement.measure(order, terminal=terminal)
        parts += ["", noise_text(found)]
        data["pilot"] = noise_json(found)
    elif evaluations:
        parts += _short(arguments, evaluations, terminal, data)
    is_wrong = any(finding.state == "wrong" for finding in findings)
    return CommandResult(text=rich.console.Group(*parts), data=data, exit_code=1 if is_wrong else 0)


def _check_machines(
    arguments: argparse.Namespace, evaluations: int, terminal: Terminal
) -> CommandResult:
    with resumable(None):
        target = options.group_of(arguments, TargetSettings)
        found = fleet_check.check(
            arguments.workers, target, evaluations=evaluations, terminal=terminal
        )
    return CommandResult(
        text=machines_text(found, target.model),
        data=finite(to_plain(found)),
        exit_code=1 if found.is_wrong else 0,
    )


def machines_text(found: FleetCheck, model: str) -> rich.console.RenderableType:
    """Return the check of several machines for a terminal."""
    made = table("machine", "cores", "MiB", f"mean ms of {model}", "over the mean of all")
    for node in found.nodes:
        mean_ms = statistics.mean(node.means_ms) if node.means_ms else None
        over = "–"
        if node.ratio is not None and node.interval is not None:
            over = formatting.ratio(node.ratio, node.interval)
        row = (node.name, f"{node.cores}", f"{node.memory_mb:,}", formatting.number(mean_ms), over)
        made.add_row(*row)
    parts: list[rich.console.RenderableType] = [made, ""]
    told: dict[Finding, list[str]] = {}
    for node in found.nodes:
        for one in node.shortcomings:
            told.setdefault(one, []).append(node.name)
    for one, names in told.items():
        where = "all machines" if len(names) == len(found.nodes) else ", ".join(names)
        parts.append(_line(dataclasses.replace(one, text=f"{one.text} ({where})")))
    alike = Finding("alike", "ok", "trials on these machines can be compared")
    if found.difference is not None:
        alike = Finding("alike", "wrong", found.difference)
    return rich.console.Group(*parts, _line(alike))


def _short(
    arguments: argparse.Namespace, evaluations: int, terminal: Terminal, data: dict[str, object]
) -> list[rich.console.RenderableType]:
    terminal.say(f"measuring the noise of {arguments.model}: {evaluations} evaluations")
    with resumable(None):
        target = options.group_of(arguments, TargetSettings)
        found = doctor.noise_of(target, evaluations=evaluations)
    data["noise"] = finite(to_plain(found))
    return [rich.text.Text(sentence) for sentence in doctor.sentences(found)]


def _order(arguments: argparse.Namespace) -> noise_measurement.NoiseMeasurementSpec:
    if arguments.workers is not None:
        raise UsageError("--workers and --noise: choose one; --noise measures this machine")
    if arguments.clean:
        raise UsageError("--clean and --noise: choose one; --clean does not measure")
    given = {name: getattr(arguments, name) for name in ("configurations", "evaluations")}
    told = f"a whole number from {MIN_OF_NOISE_MEASUREMENT} with --noise"
    for name, value in given.items():
        check_range(f"--{name}", value, told, low=MIN_OF_NOISE_MEASUREMENT)
    return noise_measurement.NoiseMeasurementSpec(
        settings=StudySettings(
            target=options.group_of(arguments, TargetSettings),
            search=SearchSettings(sampler="random", seed=arguments.seed or 0),
            measurement=options.group_of(arguments, MeasurementSettings),
        ),
        **{name: value for name, value in given.items() if value is not None},
    )


def _reject_noise_options(arguments: argparse.Namespace) -> None:
    given = [name for name in ("configurations", "seed") if getattr(arguments, name) is not None]
    settings = ["seconds", *(name for names in ONLY_NOISE_MEASUREMENT.values() for name in names)]
    given += [name for name in settings if hasattr(arguments, name)]
    if given:
        flags = {f.name: o.flag for kind in GROUPS.values() for f, o in options_of(kind)}
        raise UsageError(f"{flags.get(given[0], f'--{given[0]}')}: only allowed with --noise")


def _clean() -> CommandResult:
    removed = doctor.clean()
    said = [f"removed {path}" for path in removed] or ["nothing to clean up"]
    return CommandResult(text="\n".join(said), data={"removed": list(removed)})


def _line(finding: Finding) -> rich.text.Text:
    line = rich.text.Text(f"{finding.state:<6}", style=STYLES[finding.state])
    return line.append(f"{finding.name:<12} {finding.text}", style="not bold default")


def noise_text(found: NoiseMeasurement) -> rich.console.RenderableType:
    """Return the result of a noise measurement for a terminal."""
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


def noise_json(found: NoiseMeasurement) -> dict[str, Any]:
    """Return the result of a noise measurement as JSON, including all blocks."""
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
