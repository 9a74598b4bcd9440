"""What a search gains from several machines, and whether machines that differ mislead it: replayed.

Each of the recorded tables is searched by one machine and by several at once, with the same seeds; a
machine moves in time as the recorded one did, each on a course of its own, so that they differ by some
percent for as long as a search takes. Regret is the true loss of what is recommended. With `--node-sd`,
machines also differ lastingly, by a normal factor of that standard deviation. On null tables, where all
configurations are equal, studies end with their verdict; machines differ by 10 % there.

    python benchmarks/parallel_trials.py [--nodes 4] [--node-sd 0.05] [--seeds 40] [--write] [--json]

Ends with 1 when a target is missed. Some minutes on two cores for each table.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import statistics
import sys
from collections.abc import Sequence

import numpy as np
import result
from scipy import stats

from tuner.lab import replay, table_benchmark
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables import sampler_results
from tuner.lab.tables.scoring import ReplayRun
from tuner.lab.tables.table_evaluator import Perturbations

TABLES = pathlib.Path(__file__).parent / "tables"
SEARCHED = ("resnet-20", "reviews-20", "orientation-12", "magika-8", "wine-30")
NULL = ("resnet-20", "magika-8")
COMPARED_AT, TRIALS = 30, 50
SHARE, MARGIN, WRONG = 0.4, 0.01, 0.05
NULL_TRIALS, PAIRS = 20, 6
GRID = np.arange(0.02, 1.0, 0.005)
"""Times at which means are compared, as shares of one machine's after `COMPARED_AT` trials."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Searches of one table by one machine and by several."""

    table: str
    alone: list[float]
    """Regret of one machine after `COMPARED_AT` trials, of each seed."""
    alone_s: float
    """Mean time of it until then."""
    several: list[list[float]]
    """Regret of several machines at each time of `GRID`, of each seed."""
    later: list[float]
    """Regret of several machines less that of one, each after `TRIALS` trials, of each seed."""
    speedup: float
    """Time of one machine for all trials over that of several."""


def share(searched: Sequence[Searched]) -> float:
    """Return the share of the time from which several machines stay as good as one was; infinite: never."""
    found = np.mean([one.several for one in searched], axis=(0, 1))
    above = np.flatnonzero(found > np.mean([one.alone for one in searched]))
    first = 0 if not len(above) else int(above[-1]) + 1
    return math.inf if first == len(GRID) else float(GRID[first])


def points(each: Sequence[float]) -> str:
    """Return a mean over seeds with its 95 % interval, in points."""
    reach = stats.t.ppf(0.975, len(each) - 1) * stats.sem(each) if len(each) > 1 else math.nan
    return f"{100 * statistics.fmean(each):+.1f} ± {100 * reach:.1f}"


def regrets(ground: PreparedTable, runs: Sequence[ReplayRun]) -> np.ndarray:
    """Return the regret of each seed (rows) after each trial."""
    default = ground.problem.default
    return np.array([sampler_results.run_regrets(run, ground.truth, default) for run in runs])


def search(table: str, options: argparse.Namespace) -> Searched:
    """Replay both and compare them."""
    ground = table_benchmark.prepare_table(TABLES / table, {"objective": "mean"})
    order = ReplaySpec(sampler="structured", trials=TRIALS, seeds=tuple(range(options.seeds)))
    several = dataclasses.replace(
        order, nodes=options.nodes, perturbations=Perturbations(node_sd=options.node_sd)
    )
    one, many = (replay.replay(ground, each).runs for each in (order, several))
    lost, lost_many = regrets(ground, one), regrets(ground, many)
    alone_s = statistics.fmean(run.seconds[COMPARED_AT - 1] for run in one)
    usual = ground.truth.regret(ground.problem.default)
    return Searched(
        table=table,
        alone=lost[:, COMPARED_AT - 1].tolist(),
        alone_s=alone_s,
        several=[_at(run, row, usual, alone_s) for run, row in zip(many, lost_many, strict=True)],
        later=(lost_many[:, -1] - lost[:, -1]).tolist(),
        speedup=statistics.fmean(run.seconds[-1] for run in one)
        / statistics.fmean(run.seconds[-1] for run in many),
    )


def _at(run: ReplayRun, lost: np.ndarray, usual: float, alone_s: float) -> list[float]:
    """Return a run's regret at the times of `GRID`, `usual` where no trial has ended."""
    done = np.searchsorted(run.seconds, GRID * alone_s, side="right")
    return [float(lost[count - 1]) if count else usual for count in done]


def wrong_verdicts(table: str, options: argparse.Namespace) -> tuple[int, int]:
    """Return how many studies on a null table end with "better", and how many there are."""
    ground = table_benchmark.prepare_table(TABLES / table, {"objective": "mean"})
    order = ReplaySpec(
        sampler="structured",
        trials=NULL_TRIALS,
        seeds=tuple(range(options.null_seeds)),
        pairs=PAIRS,
        studies_s=(math.inf,),
        nodes=options.nodes,
        perturbations=Perturbations(is_null=True, node_sd=max(options.node_sd, 0.1)),
    )
    found = [run.studies[-1].outcome for run in replay.replay(ground, order).runs]
    return found.count("better"), len(found)


def _apart(searched: Sequence[Searched]) -> list[float]:
    """Return, of each seed, what several machines lose to one at `SHARE` of its time."""
    place = int(np.searchsorted(GRID, SHARE - 1e-9))
    found = np.array([[row[place] for row in one.several] for one in searched])
    return [
        float(each) for each in (found - np.array([one.alone for one in searched])).mean(axis=0)
    ]


def concluded(
    searched: Sequence[Searched], wrong: Sequence[tuple[int, int]], options: argparse.Namespace
) -> result.Result:
    """Tables and verdict."""
    reached, better_of = share(searched), [sum(each) for each in zip(*wrong, strict=True)]
    better, studies = better_of
    later = [statistics.fmean(each) for each in zip(*(one.later for one in searched), strict=True)]
    rows = [
        (
            one.table,
            f"{statistics.fmean(one.alone):.1%}",
            f"{one.alone_s:.0f}",
            points(_apart([one])),
            points(one.later),
            f"{one.speedup:.2f}",
        )
        for one in searched
    ]
    rows.append(("all", "", "", points(_apart(searched)), points(later), ""))
    return result.Result(
        name="parallel_trials",
        question=(
            f"How much sooner do {options.nodes} machines find what one finds in {COMPARED_AT} trials, what do "
            f"they lose at the end, and how often do machines that differ by 10 % make a study wrong?"
        ),
        target=(
            f"at most {SHARE} of the time; after {TRIALS} trials at most {100 * MARGIN:g} point worse; "
            f'"better" in at most {WRONG:.0%} of the studies of equal configurations'
        ),
        verdict=f"{reached:.2f} of the time, {points(later)} points, {better} of {studies} better",
        is_met=reached <= SHARE and statistics.fmean(later) <= MARGIN and better <= WRONG * studies,
        tables=(
            result.Table(
                title=f"Mean regret of {options.seeds} seeds, machines that differ lastingly by {options.node_sd:.0%}",
                head=(
                    "table",
                    f"one, {COMPARED_AT} trials",
                    "seconds",
                    f"several less that at {SHARE} of the time, points",
                    f"several less one after {TRIALS}, points",
                    f"{TRIALS} trials, times as fast",
                ),
                rows=rows,
            ),
        ),
        figures={
            "searched": [dataclasses.asdict(one) for one in searched],
            "share": reached,
            "wrong": [better, studies],
        },
        packages=("optuna", "scipy"),
    )


def main() -> int:
    """Replay and conclude."""
    parser = argparse.ArgumentParser(description="searches by several machines, replayed")
    parser.add_argument("--nodes", type=int, default=4, help="machines; default 4")
    parser.add_argument("--node-sd", type=float, default=0.0, help="how they differ; default 0")
    parser.add_argument("--seeds", type=int, default=40, help="searches of each; default 40")
    parser.add_argument("--null-seeds", type=int, default=200, help="studies of each null table")
    result.add_options(parser)
    options = parser.parse_args()
    searched = [search(table, options) for table in SEARCHED]
    wrong = [wrong_verdicts(table, options) for table in NULL]
    return result.conclude(concluded(searched, wrong, options), options)


if __name__ == "__main__":
    sys.exit(main())
