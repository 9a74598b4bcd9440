"""A study in SQLite: trials come back as told, and a killed owner loses the running one."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.study import _constrained_optimization as study_constraints
from optuna.trial import TrialState

from tests.fakes import studies
from tuner.errors import StorageFailed, StudyExists, UnknownStudy
from tuner.store import study_store
from tuner.store.study_store import StudyStore
from tuner.store.trial_rows import TrialResult
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.trial import OK, Outcome

DISTRIBUTIONS = {
    "replica.count": IntDistribution(1, 4),
    "routing.policy": CategoricalDistribution(["least-loaded", "round-robin"]),
}
DEFAULT = Configuration({"replica.count": 1, "routing.policy": "least-loaded"})


def created(path: pathlib.Path, url: str | None = None) -> StudyStore:
    store = StudyStore.create("s", database=path / "study.db", url=url, facts={"model": "echo"})
    store.use_sampler(optuna.samplers.RandomSampler(seed=1))
    return store


def measured() -> Measurement:
    return studies.measurement(12.0, np.random.default_rng(1))


def result(objective: float | None, outcome: Outcome = OK) -> TrialResult:
    return TrialResult(
        outcome=outcome,
        measurement=measured() if objective is not None else None,
        objective=objective,
        startup_s=0.05,
        overhead_s=0.2,
        started_at=1_790_000_000.0,
    )


def run_one(store: StudyStore, ended: TrialResult, origin: str = "initial") -> None:
    proposed = store.ask(DISTRIBUTIONS, else_origin="initial")
    assert proposed.origin == origin
    assert store.tell(proposed, ended) == store.trials()[-1]


def test_trials_come_back_as_they_were_told(tmp_path: pathlib.Path) -> None:
    """A second opening of the storage gives the same trials, whatever their outcome."""
    store = created(tmp_path)
    store.enqueue(DEFAULT, origin="default")
    run_one(store, result(12.5), origin="default")
    oom = Outcome(status="infeasible", cause="oom", reason="limit 64 MiB, peak 63.9 MiB")
    run_one(store, result(None, oom))
    reopened = StudyStore.open_study("s", database=tmp_path / "study.db", url=None)
    trials = reopened.trials()
    assert trials == store.trials()
    assert [trial.objective for trial in trials] == [12.5, None]
    assert trials[0].configuration == DEFAULT
    assert trials[0].origin == "default"
    assert trials[0].measurement == measured()
    assert trials[1].outcome == oom
    assert reopened.facts() == {"model": "echo"}
    for _ in range(2):
        reopened.note("payloads are synthetic")
    assert store.notes() == ("payloads are synthetic",)


def test_a_lost_trial_is_pruned_so_that_samplers_learn_from_it(tmp_path: pathlib.Path) -> None:
    """Optuna's own view of an infeasible trial is PRUNED with its outcome."""
    store = created(tmp_path)
    run_one(store, result(None, Outcome(status="failed", cause="errors", reason="3 % were 500")))
    frozen = store.study.get_trials()[0]
    assert frozen.state is TrialState.PRUNED
    assert frozen.user_attrs["outcome"]["cause"] == "errors"


OK_LIMIT, LIMIT = "mean_ms <= 50", "cpu_s_per_1000 <= 1"
VIOLATED = Outcome(status="infeasible", cause="constraint", reason="above the limit")
OOM = Outcome(status="infeasible", cause="oom", reason="limit 64 MiB")
SHORT = Outcome(status="failed", cause="short", reason="too few requests")


def test_optuna_knows_which_trials_are_feasible(tmp_path: pathlib.Path) -> None:
    """A trial has one value per metric constraint, and one above 0 only if it did not work."""
    store = created(tmp_path)
    told: list[tuple[float | None, Outcome, dict[str, tuple[float | None, float | None]]]] = [
        (12.0, OK, {OK_LIMIT: (-1.2, 0.1), LIMIT: (1e-16, 0.1)}),
        (None, VIOLATED, {OK_LIMIT: (-1.5, 0.1), LIMIT: (0.25, 0.1)}),
        (None, OOM, {OK_LIMIT: (None, None), LIMIT: (None, None)}),
        (None, SHORT, {OK_LIMIT: (-1.5, 0.1), LIMIT: (-0.1, None)}),
    ]
    for objective, outcome, slacks in told:
        run_one(store, dataclasses.replace(result(objective, outcome), slacks=slacks))
    reopened = StudyStore.open_study("s", database=tmp_path / "study.db", url=None)
    trials = reopened.study.get_trials()
    assert [trial.system_attrs["constraints"] for trial in trials] == [
        [-1.2, 0.0],
        [-1.5, 0.25],
        [1.0, 1.0],
        [1.0, 1.0],
    ]
    assert reopened.study.best_trial.number == 0
    feasible = study_constraints._get_feasible_trials(trials)
    assert [trial.number for trial in feasible] == [0]


def test_a_study_without_constraints_has_none_in_optuna(tmp_path: pathlib.Path) -> None:
    """Optuna would treat trials without them as infeasible in a constrained study."""
    store = created(tmp_path)
    run_one(store, result(12.0))
    run_one(store, result(None, OOM))
    assert not any("constraints" in trial.system_attrs for trial in store.study.get_trials())


def test_a_killed_owner_loses_the_running_trial_alone(tmp_path: pathlib.Path) -> None:
    """After `kill -9` in a trial, those before it are there and the running one is given up."""
    code = (
        "import pathlib, sys, time\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from tests.tuner.store import test_study_store as t\n"
        "store = t.created(pathlib.Path(sys.argv[1]))\n"
        "for i in range(3): t.run_one(store, t.result(10.0 + i))\n"
        "trial = store.ask(t.DISTRIBUTIONS, else_origin='initial')\n"
        "print('asked', flush=True); time.sleep(60)\n"
    )
    root = str(pathlib.Path(__file__).resolve().parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), root], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        process.kill()
    store = StudyStore.open_study("s", database=tmp_path / "study.db", url=None)
    assert [trial.objective for trial in store.trials()] == [10.0, 11.0, 12.0]
    assert store.give_up_running("killed") == (3,)
    assert store.give_up_running("killed") == ()
    assert len(store.trials()) == 3
    assert store.study.get_trials()[3].state is TrialState.FAIL


def test_names_are_taken_once_and_unknown_ones_are_said(tmp_path: pathlib.Path) -> None:
    """Creating twice and opening nothing are errors of use."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    created(tmp_path, url)
    with pytest.raises(StudyExists):
        created(tmp_path, url)
    with pytest.raises(UnknownStudy, match=r"studies in sqlite:.*: s\)"):
        StudyStore.open_study("t", database=tmp_path / "study.db", url=url)
    with pytest.raises(UnknownStudy):
        StudyStore.open_study("s", database=tmp_path / "study.db", url=None)
    StudyStore.open_study("s", database=tmp_path, url=url).delete()
    created(tmp_path, url)


def test_a_creation_that_fails_half_way_leaves_no_study(tmp_path: pathlib.Path) -> None:
    """The name is free in a shared storage, and the error is the first one."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with pytest.raises(TypeError, match="JSON"):
        StudyStore.create("s", database=tmp_path / "study.db", url=url, facts={"model": object()})
    assert created(tmp_path, url).facts() != {}


def test_a_damaged_storage_is_told_as_such(tmp_path: pathlib.Path) -> None:
    """Neither space nor permissions would help."""
    file = tmp_path / "study.db"
    file.write_bytes(b"no database" * 100)
    with pytest.raises(StorageFailed, match=r"failed: file is not a database; check its content$"):
        StudyStore.open_study("s", database=file, url=None)


def test_a_storage_that_cannot_be_reached_is_one_line(tmp_path: pathlib.Path) -> None:
    """An unreachable storage fails with its place and without its password."""
    with pytest.raises(StorageFailed) as caught:
        created(tmp_path, "sqlite:////nowhere/at/all.db")
    assert "\n" not in str(caught.value)
    shown = study_store.without_password("postgresql://u:secret@h/db")
    assert "secret" not in shown


def test_the_time_used_is_kept_with_the_study(tmp_path: pathlib.Path) -> None:
    """What one process kept the next one reads; how long trials lay interrupted does not count."""
    store = created(tmp_path)
    assert store.used_s() == 0
    store.ask(DISTRIBUTIONS, else_origin="initial")
    store.keep_used_s(12.5)
    reopened = StudyStore.open_study("s", database=tmp_path / "study.db", url=None)
    reopened.give_up_running("killed")
    assert reopened.used_s() == 12.5
