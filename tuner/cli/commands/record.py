"""`tune record`: evaluate each configuration of a grid repeatedly, and write a benchmark table."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib

from tuner.cli.commands import CommandResult, options
from tuner.errors import UsageError
from tuner.lab import record
from tuner.lab.record import RecordSpec
from tuner.lab.tables.schedule import RepeatRule
from tuner.lab.tables.table import status_of
from tuner.report import formatting
from tuner.settings.measurement import SCENARIO_S, MeasurementSettings
from tuner.settings.option import check_range
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import RATE
from tuner.study.progress import Terminal

TARGET = frozenset({*options.REQUESTS, "model", "trust", "scenario", "fixed", "min_accuracy"})
HOW_SERVED = frozenset({"engine", "hook", "spawner"})
REFUSED = {
    RATE: "a benchmark table is recorded in a closed loop, which has no rate",
    "goodput": "a replay computes it for any deadline (tune replay --objective goodput --slo-ms "
    "MS); record with --objective mean",
}
SECONDS = 2.0
MIN_PASSES = 3
"""Minimum number of passes; fewer hardly separate configurations from moments of the machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    target = options.add_group(parser, "target", only=TARGET | HOW_SERVED)
    load = options.action_of(target, "concurrency")
    load.required = False  # `run` requires it unless there is a scenario
    load.help = f"{load.help}; no default: required without --scenario"
    told = "search space whose configurations are all recorded (docs/search-spaces.md)"
    options.add_value(target, "--grid", "FILE", told, required=True)
    thorough = parser.add_argument_group("repetitions")
    told = "evaluations of every configuration, each pass in a new order; at least 3; default 3"
    options.add_value(thorough, "--passes", "K", told, parse=int, default=RepeatRule().passes)
    options.add_value(
        thorough,
        "--max-evaluations",
        "K",
        "most evaluations of each of the best 5 % of configurations, until its standard "
        "error is 1 %; default 16",
        parse=int,
        default=RepeatRule().most,
    )
    told = "seed of the orders and of random inputs; default 0"
    options.add_value(thorough, "--seed", "S", told, parse=int, default=0)
    measured = options.add_group(
        parser, "measurement", only=["objective", "seconds", "warmup_s", "timeout_s"]
    )
    seconds = options.action_of(measured, "seconds")
    before = str(seconds.help).partition("; default")[0]
    seconds.help = f"{before}; default {SECONDS:g}, {SCENARIO_S:g} with --scenario"
    told = "folder of the benchmark table; created, or continued if it exists"
    options.add_value(parser, "--out", "DIR", told, parse=pathlib.Path, required=True)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    done = record.record(_order(arguments), terminal=terminal)
    table = done.table
    statuses = collections.Counter(status_of(one.outcome) for one in table.evaluations)
    ended = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    cells = len(table.by_cell)
    return CommandResult(
        text=(
            f"{arguments.out}: {formatting.plural(cells, 'configuration')}, "
            f"{formatting.plural(len(table.evaluations), 'evaluation')} ({ended}), {done.measured} of them new"
        ),
        data={
            "folder": str(arguments.out),
            "candidates": cells,
            "evaluations": len(table.evaluations),
            "measured": done.measured,
            "statuses": dict(statuses),
            "notes": list(table.head.notes),
        },
    )


def _order(arguments: argparse.Namespace) -> RecordSpec:
    for option, value, least in (
        ("--passes", arguments.passes, MIN_PASSES),
        ("--max-evaluations", arguments.max_evaluations, arguments.passes),
        ("--seed", arguments.seed, 0),
    ):
        check_range(option, value, f"a whole number from {least}", low=least)
    is_scenario = hasattr(arguments, "scenario")
    options.take_scenario(arguments)
    if not is_scenario:
        if not hasattr(arguments, "concurrency"):
            raise UsageError("no load given; use --concurrency N, or --scenario FILE")
        if not hasattr(arguments, "seconds"):
            arguments.seconds = SECONDS
    for objective, why in {} if is_scenario else REFUSED.items():
        if getattr(arguments, "objective", None) == objective:
            raise UsageError(f"--objective {objective}: {why}")
    out: pathlib.Path = arguments.out
    is_table = (out / "table.yaml").is_file()
    if (out / "surface.yaml").is_file():
        raise UsageError(
            f"--out {out} is a table of format 1, which cannot be resumed; give a new folder"
        )
    if out.exists() and not is_table and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(
            f"--out {out} holds no table.yaml of an earlier `tune record`; give a new folder"
        )
    target = options.group_of(arguments, TargetSettings)
    measurement = options.group_of(arguments, MeasurementSettings)
    if measurement.second is not None:
        raise UsageError(
            f"--objective {measurement.objective}: a benchmark table is recorded for one objective"
        )
    return RecordSpec(
        settings=StudySettings(
            target=dataclasses.replace(target, space=arguments.grid),
            search=SearchSettings(sampler="random", seed=arguments.seed),
            measurement=measurement,
            store=StoreSettings(),
        ),
        thoroughness=RepeatRule(passes=arguments.passes, most=arguments.max_evaluations),
        out=out,
    )
