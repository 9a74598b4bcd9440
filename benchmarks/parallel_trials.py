"""What a search gains from several machines, and whether machines that differ mislead it: replayed.

Each of the recorded tables is searched by one machine and by several at once, with the same seeds; a
machine moves in time as the recorded one did, on a course of its own. Regret is the true loss of what
is recommended. With `--node-sd`, machines differ lastingly by a normal factor of that standard
deviation. On null tables, where all configurations are equal, studies end with their verdict.

    python benchmarks/parallel_trials.py [--nodes 4] [--node-sd 0.1] [--seeds 40] [--write] [--json]

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Searches of one table by one machine and by several."""

    table: str
    alone: float
    """Mean regret of one machine after `COMPARED_AT` trials."""
    alone_s: float
    """Mean time of it until then."""
    reached_s: float
    """Time from which the mean regret of several machines stays as low; infinite: never."""
    later: float
    """Mean regret of several machines less that of one, each after `TRIALS` trials."""
    later_reach: float
    """Half width of its 95 % interval over seeds."""
    speedup: float
    """Time of one machine for all trials over that of several."""

    @property
    def share(self) -> float:
        """Share of the time that several machines needed."""
        return self.reached_s / self.alone_s


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
    alone = float(lost[:, COMPARED_AT - 1].mean())
    times = np.unique(np.concatenate([run.seconds for run in many]))
    usual = ground.truth.regret(ground.problem.default)
    means = np.array([_mean_at(many, lost_many, usual, at_s) for at_s in times])
    above = np.flatnonzero(means > alone)
    first = 0 if not len(above) else int(above[-1]) + 1
    apart = lost_many[:, -1] - lost[:, -1]
    return Searched(
        table=table,
        alone=alone,
        alone_s=statistics.fmean(run.seconds[COMPARED_AT - 1] for run in one),
        reached_s=math.inf if first == len(times) else float(times[first]),
        later=float(apart.mean()),
        later_reach=float(stats.t.ppf(0.975, len(apart) - 1) * stats.sem(apart)),
        speedup=statistics.fmean(run.seconds[-1] for run in one)
        / statistics.fmean(run.seconds[-1] for run in many),
    )


def _mean_at(runs: Sequence[ReplayRun], lost: np.ndarray, usual: float, at_s: float) -> float:
    """Return the mean regret at a time, `usual` where no trial has ended."""
    each = []
    for run, row in zip(runs, lost, strict=True):
        done = int(np.searchsorted(run.seconds, at_s, side="right"))
        each.append(float(row[done - 1]) if done else usual)
    return statistics.fmean(each)


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


def concluded(
    searched: Sequence[Searched], wrong: Sequence[tuple[int, int]], options: argparse.Namespace
) -> result.Result:
    """Tables and verdict."""
    share = statistics.fmean(one.share for one in searched)
    later = statistics.fmean(one.later for one in searched)
    better, studies = (sum(each) for each in zip(*wrong, strict=True))
    rows = [
        (
            one.table,
            f"{one.alone:.1%}",
            f"{one.alone_s:.0f}",
            f"{one.reached_s:.0f}",
            f"{one.share:.2f}",
            f"{100 * one.later:+.1f} ± {100 * one.later_reach:.1f}",
            f"{one.speedup:.2f}",
        )
        for one in searched
    ]
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
        verdict=f"{share:.2f} of the time, {100 * later:+.1f} points, {better / studies:.1%} of {studies}",
        is_met=share <= SHARE and later <= MARGIN and better <= WRONG * studies,
        tables=(
            result.Table(
                title=f"Mean regret of {options.seeds} seeds, machines that differ by {options.node_sd:.0%}",
                head=(
                    "table",
                    f"one, {COMPARED_AT} trials",
                    "seconds",
                    "several, seconds",
                    "share",
                    f"several less one after {TRIALS}, points",
                    f"{TRIALS} trials, times as fast",
                ),
                rows=rows,
            ),
        ),
        figures={
            "searched": [dataclasses.asdict(one) for one in searched],
            "wrong": [better, studies],
        },
        packages=("optuna", "scipy"),
    )


def main() -> int:
    """Replay and conclude."""
    parser = argparse.ArgumentParser(description="searches by several machines, replayed")
    parser.add_argument("--nodes", type=int, default=4, help="machines; default 4")
    parser.add_argument("--node-sd", type=float, default=0.05, help="how they differ; default 0.05")
    parser.add_argument("--seeds", type=int, default=40, help="searches of each; default 40")
    parser.add_argument("--null-seeds", type=int, default=200, help="studies of each null table")
    result.add_options(parser)
    options = parser.parse_args()
    searched = [search(table, options) for table in SEARCHED]
    wrong = [wrong_verdicts(table, options) for table in NULL]
    return result.conclude(concluded(searched, wrong, options), options)


if __name__ == "__main__":
    sys.exit(main())
