"""The tuner's sampler in an Optuna study of your own:

    python examples/own_study.py

Every sampler of `tuner.sampling` is an `optuna.samplers.BaseSampler` and needs nothing but the
distributions of the study. Here it finds the lowest point of a bowl on a grid of 21 x 21.
"""

from __future__ import annotations

import optuna

from tuner.sampling import registry

TRIALS = 16


def height(trial: optuna.Trial) -> float:
    """A bowl whose lowest point, 0, is at x = 3, y = -2."""
    x = trial.suggest_float("x", -10.0, 10.0, step=1.0)
    y = trial.suggest_float("y", -10.0, 10.0, step=1.0)
    return (x - 3.0) ** 2 + (y + 2.0) ** 2


def main() -> None:
    """Search, and print what was found."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=registry.create("gp", seed=1, initial=8))
    study.optimize(height, n_trials=TRIALS)
    print(f"lowest {study.best_value:g} at {study.best_params} after {len(study.trials)} trials")


if __name__ == "__main__":
    main()
