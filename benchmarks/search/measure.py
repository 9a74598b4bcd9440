"""Replays searches on the recorded surfaces, and keeps what each found.

    python benchmarks/search/measure.py [--surfaces DIR] [--data DIR] [--only NAME ...] [--seeds 100]

One file per surface and condition in `data/`, with a figure per seed, so that the page (`page.py`)
computes everything anew. What is there is not replayed again; delete it to do so. Serves nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tuner import replaying
from tuner.errors import InvalidSurface
from tuner.replay import scoring, surface_files
from tuner.replay.drawn import Wrappers
from tuner.replaying import Ground, Order

HERE = pathlib.Path(__file__).resolve().parent
SURFACES = HERE.parent / "surfaces"
DATA = HERE / "data"
SEEDS = 100
TRIALS = 40
PEER_TRIALS = 50
STUDIES = 1000
"""Replayed studies of the null surface and of coverage, over all surfaces together."""
STUDY_TRIALS = 25
PAIRS = 20
BUDGETS = (15, 30, 50)
"""Trials at which regrets are compared."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One way to replay a surface."""

    sampler: str
    trials: int = TRIALS
    guess: replaying.Guess = "profile"
    wrappers: Wrappers = dataclasses.field(default_factory=Wrappers)
    pairs: int = 0
    after: str = ""
    """Name of the surface that is searched before."""

    def order(self, seeds: tuple[int, ...], after: Ground | None) -> Order:
        """What is replayed."""
        return Order(
            sampler=self.sampler,
            trials=self.trials,
            seeds=seeds,
            guess=self.guess,
            wrappers=self.wrappers,
            pairs=self.pairs,
            after=after,
        )


def conditions(names: Mapping[str, str]) -> dict[str, Condition]:
    """By name; those that need another load of the model are added by `transfers`."""
    noisy, walls = Wrappers(noise_sd=0.05), Wrappers(has_walls=True)
    study = {"trials": STUDY_TRIALS, "pairs": PAIRS}
    found = {
        "gp": Condition(sampler="gp", trials=PEER_TRIALS),
        "structured": Condition(sampler="structured", trials=PEER_TRIALS),
        "gp-noise": Condition(sampler="gp", wrappers=noisy),
        "structured-noise": Condition(sampler="structured", wrappers=noisy),
        "gp-walls": Condition(sampler="gp", wrappers=walls),
        "structured-walls": Condition(sampler="structured", wrappers=walls),
        "null": Condition(sampler="structured", wrappers=Wrappers(is_null=True), **study),
        "coverage": Condition(sampler="structured", wrappers=Wrappers(is_resampled=True), **study),
        "coverage-raw": Condition(sampler="structured", **study),
    }
    for wrong in ("shuffled", "inverted", "constant", "twice"):
        found[f"structured-{wrong}"] = Condition(sampler="structured", guess=wrong)
    for peer in names.values():
        found[peer] = Condition(sampler=peer, trials=PEER_TRIALS)
    return found


def transfers(name: str, grounds: Mapping[str, Ground]) -> Iterator[tuple[str, Condition]]:
    """A search that has searched the same model under another load before."""
    own = grounds[name].surface.head
    for other, ground in grounds.items():
        head = ground.surface.head
        if (head.model, head.engine) == (
            own.model,
            own.engine,
        ) and head.concurrency != own.concurrency:
            yield f"after-{other}", Condition(sampler="structured", after=other)


def summary(ground: Ground, condition: Condition, replayed: replaying.Replayed) -> dict[str, Any]:
    """What the page needs of a condition, a figure per seed."""
    truth, runs = ground.truth, replayed.runs
    regrets = scoring.regrets(runs, truth)
    good = {share: truth.good(share) for share in scoring.SHARES}
    return {
        "surface": ground.surface.head.name,
        "sampler": condition.sampler,
        "trials": condition.trials,
        "profiling": replaying.profiling_trials(ground, replayed.order),
        "seeds": len(runs),
        "cells": len(ground.arena.candidates.cells),
        "optimum_ms": truth.optimum,
        "optimum_se": truth.optimum_se,
        "tolerances": {f"{share:g}": truth.tolerance(share) for share in scoring.SHARES},
        "good_cells": {f"{share:g}": len(good[share]) for share in scoring.SHARES},
        "random_median": {
            f"{share:g}": scoring.random_median(
                len(ground.arena.candidates.cells), len(good[share])
            )
            for share in scoring.SHARES
        },
        "trials_to": {
            f"{share:g}": [_finite(scoring.trials_to(run, good[share])) for run in runs]
            for share in scoring.SHARES
        },
        "regrets": {
            str(budget): [_finite(value) for value in regrets[:, budget - 1]]
            for budget in BUDGETS
            if budget <= condition.trials
        },
        "lost": [list(run.lost) for run in runs],
        "verdicts": [
            {
                "outcome": run.verdict.outcome,
                "ratio": run.verdict.ratio,
                "true_ratio": run.verdict.true_ratio,
                "covers": run.verdict.covers,
                "pairs": run.verdict.pairs,
            }
            for run in runs
            if run.verdict is not None
        ],
        "sampler_ms": 1e3 * float(np.mean([run.sampler_s for run in runs])) / condition.trials,
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def main() -> int:
    """Replay what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--surfaces", type=pathlib.Path, default=SURFACES)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    parser.add_argument("--only", nargs="*", default=[], help="surfaces or conditions, by name")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--peers", nargs="*", default=["random", "tpe", "skopt"])
    arguments = parser.parse_args()
    grounds: dict[str, Ground] = {}
    for folder in sorted(arguments.surfaces.iterdir()):
        if (folder / surface_files.HEAD).is_file():
            try:
                grounds[folder.name] = replaying.ground_of(surface_files.read(folder))
            except InvalidSurface as error:
                sys.stderr.write(f"left out: {error}\n")
    for name, ground in grounds.items():
        every = {
            **conditions({peer: peer for peer in arguments.peers}),
            **dict(transfers(name, grounds)),
        }
        for label, condition in every.items():
            if arguments.only and not {name, label} & set(arguments.only):
                continue
            path = arguments.data / name / f"{label}.json"
            if path.exists():
                continue
            seeds = arguments.seeds
            if condition.pairs:
                seeds = -(-STUDIES // len(grounds))
            order = condition.order(tuple(range(seeds)), grounds.get(condition.after))
            begun_s = time.monotonic()
            found = summary(ground, condition, replaying.replay(ground, order))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found) + "\n", encoding="utf-8")
            sys.stderr.write(f"{name} {label}: {time.monotonic() - begun_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
