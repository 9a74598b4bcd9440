"""Settings of the search."""

from __future__ import annotations

import dataclasses

from tuner.settings.option import check_range, duration_s, option_field, require

INITIAL = 25
"""Number of initial trials, if the budget is at least twice as large."""
INITIALS = {
    "structured": 2,
    "gp": 8,
    "ridge": 8,
    **dict.fromkeys(("skopt", "tpe", "optuna-gp", "smac", "botorch"), 10),
}
"""Initial trials of samplers that need fewer, from recorded tables or libraries' defaults."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings for which configurations are tried, and how many."""

    sampler: str = option_field(
        "structured",
        "NAME",
        "sampler that proposes configurations: structured (predicts them from the "
        "default's latency), gp, random, epsilon-greedy, skopt, gpy, tpe, prediction, "
        "ridge, hill-climb, optuna-gp, smac or botorch (docs/samplers.md); default "
        "structured",
    )
    trials: int = option_field(
        50,
        "COUNT",
        "trials in total, including the default and the initial ones; default 50",
        parse=int,
    )
    initial: int | None = option_field(
        None,
        "COUNT",
        "trials before results guide the sampler, the first being the default "
        "configuration; at most half of --trials; default 2 for structured (8 without "
        "predictions), 8 for gp and ridge, 10 for skopt, tpe, optuna-gp, smac and "
        "botorch, 25 for gpy, random and epsilon-greedy, 0 for prediction and hill-climb",
        parse=int,
    )
    max_time_s: float = option_field(
        600.0,
        "DURATION",
        "longest time of the study including verification (90s, 10m, 1h); default 10m",
        parse=duration_s,
    )
    stop_ei: float = option_field(
        0.01,
        "SHARE",
        "end early if the largest expected improvement stays below this share of the "
        "best for three proposals in a row; 0: never; default 0.01",
        parse=float,
    )
    epsilon: float | None = option_field(
        None,
        "SHARE",
        "share of guided proposals that epsilon-greedy draws at random; default: the sampler's own",
        parse=float,
    )
    learn_from: str = option_field(
        "auto",
        "NAMES",
        "finished studies of the same model whose evaluations warm-start the search: "
        "comma-separated names, auto (those in --runs-dir that fit, nearest loads first) "
        "or none; default auto",
    )
    workers: str | None = option_field(
        None,
        "N",
        "machines of a Ray cluster that evaluate at once, each as a whole: a number, auto (all of them), or "
        "ray://HOST:PORT for all of the cluster whose head is there (docs/machines.md); default: this machine",
    )
    seed: int = option_field(0, "S", "seed of proposals and random inputs; default 0", parse=int)

    def __post_init__(self) -> None:
        check_range("--trials", self.trials, "a whole number from 1", low=1)
        words = self.workers
        require(
            words is None
            or words == "auto"
            or (words.isdecimal() and int(words) > 0)
            or (words.startswith("ray://") and ":" in words[6:]),
            "--workers",
            words,
            "a whole number from 1, auto, or ray://HOST:PORT",
        )
        require(
            1 <= self.first_trials <= self.trials,
            "--initial",
            self.initial,
            f"from 1 to the number of trials ({self.trials}); the default configuration "
            "is one of them",
        )
        check_range("--max-time", self.max_time_s, "a duration above 0", above=0)
        require(0 <= self.stop_ei < 1, "--stop-ei", self.stop_ei, "a share from 0 to below 1")
        check_range("--epsilon", self.epsilon, "a share from 0 to 1", low=0, high=1)
        check_range("--seed", self.seed, "a whole number from 0", low=0)

    @property
    def first_trials(self) -> int:
        """Number of trials before results guide the sampler."""
        if self.initial is not None:
            return self.initial
        wanted = INITIALS.get(self.sampler, INITIAL)
        return min(wanted, max(1, self.trials // 2))
