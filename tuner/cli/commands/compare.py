"""`tune compare`: samplers with the same budget, served or on benchmark tables."""

from __future__ import annotations

import argparse
import datetime as dt
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.text

from tuner.cli.commands import CommandResult, options
from tuner.cli.commands.study import finite
from tuner.errors import StudyExists, UsageError
from tuner.lab import compare, table_benchmark
from tuner.lab.compare import CompareSpec
from tuner.metrics.benchmark import MIN_UNITS, BenchmarkRecord, NonInferiority, SamplerResult
from tuner.report import files as report_files
from tuner.report import formatting
from tuner.report.console_text import LabelledCommand
from tuner.sampling import registry
from tuner.settings.option import check_range
from tuner.settings.option import options as settings_options
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import GROUPS
from tuner.store.run_folder import RunFolder
from tuner.study.progress import Terminal
from tuner.values.plain import to_plain

ALL = "all"
SEEDS = 20
SERVED = ("model", "concurrency")
OF_EVALUATIONS = frozenset({"objective", "slo_ms", "constraints", "prices"})
"""Measurement settings that recorded evaluations can provide."""
ON_A_TABLE = OF_EVALUATIONS | {"trials", "initial", "seed", "study", "runs_dir"}
"""Settings allowed on a benchmark table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    tables = parser.add_argument_group("on recorded benchmark tables, without serving")
    tables.add_argument(
        "--table",
        nargs="+",
        type=pathlib.Path,
        metavar="DIR",
        help="folders of `tune record` to compare on; default: serve --model at --concurrency",
    )
    told = f"searches per sampler and benchmark table, each with its own seed; default {SEEDS}"
    options.add_value(tables, "--seeds", "K", told, parse=int)
    told = "sampler that is tested to be no worse than each of the others; default "
    options.add_value(tables, "--reference", "NAME", told + table_benchmark.REFERENCE)
    told = "parallel search processes; default: one per core"
    options.add_value(tables, "--jobs", "COUNT", told, parse=int)
    target = options.add_group(parser, "target", but=["rate", "arrivals"])
    for action in target._group_actions:  # noqa: SLF001 - argparse has no public name for them
        if action.required:  # `run` requires them unless there is a table
            action.required = False
            action.help = f"{action.help}; no default: required without --table"
    group = options.add_group(parser, "search", only=["trials", "initial", "epsilon", "seed"])
    options.add_value(
        group,
        "--samplers",
        "NAMES",
        "samplers to compare, comma-separated, as random,gp; or all, those with "
        "installed packages; default all on a benchmark table, otherwise required",
    )
    told = "served searches per sampler, each with its own seed; default 1"
    options.add_value(group, "--repeats", "COUNT", told, parse=int)
    options.add_group(parser, "measurement")
    options.add_group(parser, "store", only=["study", "runs_dir"])


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    if arguments.table is not None:
        return _compare_on_tables(arguments, terminal)
    return _compare_on_server(arguments, terminal)


def _compare_on_server(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    is_scenario = hasattr(arguments, "scenario")
    missing = [f"--{name}" for name in SERVED if not is_scenario and not hasattr(arguments, name)]
    if arguments.samplers is None:
        missing.append("--samplers")
    if missing:
        raise UsageError(
            f"missing {', '.join(missing)}; or give --table DIR to compare on recorded "
            "benchmark tables"
        )
    for option in ("seeds", "reference", "jobs"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} is only for recorded benchmark tables; add --table DIR, or "
                "leave it out"
            )
    samplers = _sampler_names(arguments.samplers)
    repeats = 1 if arguments.repeats is None else arguments.repeats
    if len(samplers) < 2:
        raise UsageError(f"--samplers {arguments.samplers}: expected at least two, as random,gp")
    check_range("--repeats", repeats, "a whole number from 1", low=1)
    settings = options.settings_of(arguments)
    if settings.measurement.second is not None:
        raise UsageError(
            f"--objective {settings.measurement.objective}: a comparison has one objective"
        )
    order = CompareSpec(settings=settings, samplers=samplers, repeats=repeats)
    record, folder = compare.compare(order, terminal=terminal)
    page = report_files.write_comparison(record, folder.path / "compare.html")
    sentences = [difference.text for difference in record.differences]
    sentences += [f"note: {note}" for note in record.notes]
    return _make_result(sentences, record.as_json(), page, folder)


def _compare_on_tables(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    order = _order(arguments)
    store = options.group_of(arguments, StoreSettings)
    names = [path.resolve().name for path in order.tables]
    first = names[0] if len(names) == 1 else f"{len(names)}-tables"
    name = store.study or f"compare-{first}-{dt.datetime.now().astimezone():%Y%m%d-%H%M%S}"
    folder = RunFolder(pathlib.Path(store.runs_dir), name)
    if folder.exists():
        instead = "a comparison cannot be resumed; choose another --study"
        raise StudyExists(str(folder.path), instead)
    folder.create(_spec_json(order), {}, settings_file=compare.SETTINGS_FILE)
    try:
        record = table_benchmark.compare(
            order,
            name=name,
            say=terminal.say,
            check=terminal.check,
        )
    except BaseException:
        folder.discard()
        raise
    folder.write_json("compare.json", record.as_json())
    page = report_files.write_benchmark(record, folder.path / "compare.html")
    return _make_result(list(_sentences(record)), record.as_json(), page, folder)


def _order(arguments: argparse.Namespace) -> table_benchmark.TableBenchmarkSpec:
    for flag, name in _given_settings(arguments):
        if name not in ON_A_TABLE:
            raise UsageError(f"{flag}: not allowed on a recorded benchmark table; leave it out")
    if arguments.repeats is not None:
        raise UsageError("--repeats is for served searches; on a benchmark table use --seeds")
    seeds = SEEDS if arguments.seeds is None else arguments.seeds
    check_range("--seeds", seeds, "a whole number from 1", low=1)
    check_range("--jobs", arguments.jobs, "a whole number from 1", low=1)
    reference = arguments.reference or table_benchmark.REFERENCE
    search = options.group_of(arguments, SearchSettings)
    samplers = _sampler_names(arguments.samplers or ALL)
    return table_benchmark.TableBenchmarkSpec(
        tables=tuple(arguments.table),
        samplers=table_benchmark.samplers_of(samplers, reference),
        reference=reference,
        trials=search.trials,
        seeds=tuple(range(search.seed, search.seed + seeds)),
        initial=search.initial,
        measurement={
            name: tuple(value) if name == "constraints" else value
            for name in sorted(OF_EVALUATIONS)
            if (value := getattr(arguments, name, None)) is not None
        },
        jobs=arguments.jobs,
    )


def _given_settings(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for group in GROUPS.values():
        for field, option in settings_options(group):
            if hasattr(arguments, field.name):
                yield option.flag, field.name


def _sampler_names(text: str) -> tuple[str, ...]:
    if text == ALL:
        return tuple(name for name in registry.NAMES if registry.is_installed(name))
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _spec_json(order: table_benchmark.TableBenchmarkSpec) -> dict[str, Any]:
    names = ("samplers", "reference", "trials", "seeds", "initial")
    data: dict[str, Any] = {"tables": [str(path) for path in order.tables]}
    data |= {name: getattr(order, name) for name in names} | dict(order.measurement)
    return {name: to_plain(value) for name, value in data.items()}


def _sentences(record: BenchmarkRecord) -> Iterator[str]:
    for table in record.tables:
        searches = formatting.plural(record.seeds, "search")
        yield (
            f"{table.name}: {formatting.plural(table.candidates, 'configuration')}, "
            f"{searches} of {formatting.plural(record.trials, 'trial')} for each sampler"
        )
        yield from (f"  {_line(one, record.trials)}" for one in table.contestants)
        yield from (f"  note: {note}" for note in table.notes)
        yield from _noninferiority_results(table.noninferiority, record, "seeds")
    if record.over_tables:
        yield f"over {formatting.plural(len(record.tables), 'benchmark table')}:"
        yield from _noninferiority_results(record.over_tables, record, "tables")


def _line(one: SamplerResult, trials: int) -> str:
    budgets = table_benchmark.budgets_of(trials)
    regrets = " / ".join(formatting.percent(one.regret.mean[budget - 1]) for budget in budgets)
    within = "; ".join(
        f"within {100 * each.share:g} % after {formatting.trials(each.median)} "
        f"(90th percentile {formatting.trials(each.p90)})"
        for each in one.within
    )
    return (
        f"{one.sampler}: mean regret {regrets} after {' / '.join(map(str, budgets))} trials; {within}; "
        f"{one.sampler_ms:.0f} ms a trial"
    )


def _noninferiority_results(
    found: Sequence[NonInferiority], record: BenchmarkRecord, unit: str
) -> Iterator[str]:
    for one in found:
        bound = f"no bound of fewer than {MIN_UNITS}"
        if one.upper is not None:
            bound = f"upper 95 % bound {100 * one.upper:+.2f}"
        yield (
            f"  {record.reference} against {one.peer} after {one.budget}: {one.standing} "
            f"(difference {100 * one.difference:+.2f} points, {bound}, {one.units} {unit})"
        )


def _make_result(
    sentences: Sequence[str], data: dict[str, Any], page: pathlib.Path, folder: RunFolder
) -> CommandResult:
    return CommandResult(
        text=rich.console.Group(
            *map(rich.text.Text, sentences), LabelledCommand("report ", str(page))
        ),
        data={
            **finite(data),
            "files": {"report": str(page), "folder": str(folder.path)},
        },
    )
