"""`tune replay`: run searches on a benchmark table, without serving."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence

from tuner.cli.commands import CommandResult, options
from tuner.errors import UsageError
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.tables import scoring, table_files
from tuner.lab.tables.scoring import ReplayedVerdict, ReplayRun
from tuner.lab.tables.table_evaluator import Perturbations
from tuner.metrics import objective as objectives
from tuner.metrics import prices
from tuner.metrics.objective import NAMES as OBJECTIVES
from tuner.report import formatting
from tuner.sampling import registry
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.option import check_range
from tuner.settings.search import SearchSettings
from tuner.settings.workload import RATE
from tuner.study.progress import Terminal

RECORDED_OBJECTIVES = tuple(name for name in OBJECTIVES if name not in {RATE, "energy"})
GIVEN = ("slo_ms", "constraints", "prices")
"""Measurement settings that can be applied to a recorded table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    folder = "folder of `tune record`"
    parser.add_argument("table", type=pathlib.Path, metavar="TABLE", help=folder)
    usual = SearchSettings().sampler
    told = f"sampler; default {usual}"
    options.add_value(parser, "--sampler", None, told, default=usual, choices=registry.NAMES)
    told = "trials of each search; default 50"
    options.add_value(parser, "--trials", "N", told, parse=int, default=50)
    told = "number of searches, with seeds 0 to K - 1; default 20"
    options.add_value(parser, "--seeds", "K", told, parse=int, default=20)
    told = "trials before results guide the sampler; default: the sampler's own"
    options.add_value(parser, "--initial", "N", told, parse=int)
    told = "objective; default: that of the benchmark table"
    options.add_value(parser, "--objective", None, told, choices=RECORDED_OBJECTIVES)
    options.add_group(parser, "measurement", only=GIVEN)
    options.add_value(
        parser,
        "--prediction",
        None,
        "predictions for structured and prediction: the estimate from the default's latency, "
        "none, or a wrong one; default estimate",
        default="estimate",
        choices=replay_search.PREDICTIONS,
    )
    options.add_value(
        parser,
        "--warm-start",
        "TABLE",
        "benchmark table of the model under another load that each search has searched "
        "before; default: none",
        parse=pathlib.Path,
    )
    options.add_value(
        parser,
        "--pairs",
        "COUNT",
        "end every search with a final selection and a verdict of at most this many "
        "pairs, and count right and wrong ones; default 0, none",
        parse=int,
        default=0,
    )
    told = "machines that evaluate at once; default 1"
    options.add_value(parser, "--nodes", "N", told, parse=int, default=1)
    laid = parser.add_argument_group("perturbations of the table")
    options.add_value(
        laid,
        "--noise",
        "SD",
        "multiply each evaluation by random noise with this standard deviation, 0.05 for "
        "5 %; default 0",
        parse=float,
        default=0.0,
    )
    options.add_value(
        laid,
        "--node-sd",
        "SD",
        "let machines differ lastingly with this standard deviation, 0.05 for 5 %; default 0",
        parse=float,
        default=0.0,
    )
    told = "give every configuration the evaluations of the default; default: its own"
    options.add_flag(laid, "--null", told)
    told = "let configurations beyond a limit run out of memory; default: no"
    options.add_flag(laid, "--inject-oom", told)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    order = _order(arguments)
    ground = _prepare_table(arguments.table, arguments)
    if arguments.warm_start is not None:
        before = _prepare_table(arguments.warm_start, arguments)
        order = dataclasses.replace(order, after=before)
    done = 0

    def report(_run: ReplayRun) -> None:
        nonlocal done
        done += 1
        terminal.check()
        if done % 10 == 0 or done == len(order.seeds):
            terminal.say(f"{done} of {len(order.seeds)} searches")

    replayed = replay.replay(ground, order, report=report)
    data = replayed.as_json()
    cells = len(ground.problem.candidates.configurations)
    objective = objectives.find_objective(ground.objective)
    optimum = formatting.number(objective.from_minimised(ground.truth.optimum))
    head = (
        f"{data['table']}: {formatting.plural(cells, 'configuration')}, {order.sampler}, "
        f"{formatting.plural(len(order.seeds), 'search')} of {formatting.plural(order.trials, 'trial')}; "
        f"optimum of {objective.label} {optimum} {objective.unit} (standard error "
        f"{formatting.percent(ground.truth.optimum_se)})"
    )
    said = [head]
    for share in scoring.SHARES:
        one = scoring.trials_to_tolerance(replayed.runs, ground.truth, share, candidates=cells)
        said.append(
            f"within {_tolerance(one)} ({formatting.plural(one.good_candidates, 'configuration')}): "
            f"median {formatting.trials(one.median)}, 90th percentile {formatting.trials(one.p90)}, reached in "
            f"{formatting.percent(one.reached)}; random search: median {one.random_median}"
        )
    said += _verdicts([study for run in replayed.runs for study in run.studies])
    took_s = sum(one.seconds[-1] for one in replayed.runs) / len(order.seeds)
    said.append(f"a search took {formatting.duration(took_s)} of the recorded machine's time")
    each_ms = 1e3 * sum(one.sampler_s for one in replayed.runs) / (len(order.seeds) * order.trials)
    said.append(f"the sampler took {each_ms:.0f} ms a trial")
    return CommandResult(text="\n".join(said), data=data)


def _prepare_table(
    path: pathlib.Path, arguments: argparse.Namespace
) -> prepared_table.PreparedTable:
    table = table_files.read(path)
    objective = arguments.objective or table.head.objective
    given = {name: getattr(arguments, name) for name in GIVEN if hasattr(arguments, name)}
    given["constraints"] = tuple(given.get("constraints", ()))
    if table.head.deadline_ms is not None:
        given.setdefault("slo_ms", table.head.deadline_ms)
    asked = MeasurementSettings(objective=objective, **given)
    table = dataclasses.replace(table, deadline_ms=asked.slo_ms, paid=prices.read(asked.prices))
    return prepared_table.prepare_table(table, objective, asked.limits)


def _verdicts(verdicts: Sequence[ReplayedVerdict]) -> Iterator[str]:
    if not verdicts:
        return
    counts = collections.Counter(one.outcome for one in verdicts)
    yield "verdicts: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    covered = [one.covers for one in verdicts if one.covers is not None]
    if covered:
        share = sum(covered) / len(covered)
        yield f"the true ratio lay in {share:.1%} of {len(covered)} intervals"


def _tolerance(one: scoring.TrialsToTolerance) -> str:
    told = formatting.percent(one.tolerance)
    if one.tolerance <= one.share:
        return told
    return f"{told}, two standard errors of the optimum, for {formatting.percent(one.share)}"


def _order(arguments: argparse.Namespace) -> replay_search.ReplaySpec:
    check_range("--trials", arguments.trials, "a whole number from 1", low=1)
    check_range("--seeds", arguments.seeds, "a whole number from 1", low=1)
    if arguments.pairs < 0 or arguments.pairs == 1:
        raise UsageError(f"--pairs {arguments.pairs}: expected 0, or a whole number from 2")
    check_range("--noise", arguments.noise, "a share from 0 to 1, as 0.05", low=0, high=1)
    check_range("--nodes", arguments.nodes, "a whole number from 1", low=1)
    check_range("--node-sd", arguments.node_sd, "a share from 0 to 1, as 0.05", low=0, high=1)
    return replay_search.ReplaySpec(
        sampler=arguments.sampler,
        trials=arguments.trials,
        seeds=tuple(range(arguments.seeds)),
        initial=arguments.initial,
        guess=arguments.prediction,
        pairs=arguments.pairs,
        studies_s=(math.inf,) if arguments.pairs else (),
        nodes=arguments.nodes,
        perturbations=Perturbations(
            node_sd=arguments.node_sd,
            noise_sd=arguments.noise,
            is_null=arguments.null,
            injects_oom=arguments.inject_oom,
        ),
    )
