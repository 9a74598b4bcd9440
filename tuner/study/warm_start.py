"""Warm start: evaluations from earlier studies of the model under other workloads.

These studies share model, engine, spawner, limits, objective, inputs and knobs, and ran on a machine with
the same number and kind of cores; the nearest workload comes first. Targets are shifted by the
items in flight, to which latency is proportional at saturation. The Gaussian process learns the
rest, with the workload as input.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from serving.system import user_files
from tuner.errors import TunerError, UsageError
from tuner.launching import machine
from tuner.metrics import prices
from tuner.sampling.surrogates.knowledge import WarmStart
from tuner.settings.study import StudySettings
from tuner.settings.workload import RATE, rate_in_words
from tuner.space import derived_features, roles
from tuner.space.environment import Environment
from tuner.store.run_folder import RunFolder
from tuner.study import study_files
from tuner.study.problem import EarlierEvaluation, ProblemStatement
from tuner.values.configuration import Configuration

SAME_TARGET = operator.attrgetter(
    *("engine", "spawner", "limits", "payload", "shape", "values", "scenario")
)
AUTO = "auto"
NONE = "none"
MAX_STUDIES = 4
MAX_EVALUATIONS = 120
"""Maximum number of evaluations, newest first; more would take long to fit and add little."""
LOAD_SCALE = 8.0
"""Number of doublings of the workload that count as much as a knob's whole range."""
GROWING = frozenset({"mean", "p50", "p95", "p99", "consistency"})
"""Objectives that grow with the number of items in flight."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceStudy:
    """Earlier study to learn from."""

    name: str
    environment: Environment
    """Workload of the earlier study, on the new study's machine."""
    evaluations: tuple[tuple[Configuration, float], ...]
    """Evaluated configurations, each with its minimised objective."""
    winner: Configuration | None


def load_warm_start(
    settings: StudySettings, problem: ProblemStatement, model: str
) -> tuple[ProblemStatement, str | None]:
    """Add warm-start studies; also return a line that names them, or None if there are none.

    Raises:
        UsageError: a named study is missing or unsuitable.
    """
    wanted = settings.search.learn_from
    if wanted == NONE:
        return problem, None
    found = list(_source_studies(settings, problem, model, wanted))
    made = with_warm_start(problem, found, objective=settings.measurement.first)
    if made.warm_start is None:
        return problem, None
    from_ = ", ".join(
        f"{one.name} ({_workload_in_words(one.environment)}, {len(one.evaluations)} evaluations)"
        for one in found
    )
    return made, f"starts from earlier studies: {from_} (--learn-from none starts without)"


def _workload_in_words(load: Environment) -> str:
    if load.rate_per_s is not None:
        return rate_in_words(load.rate_per_s)
    return f"concurrency {load.concurrency}"


def with_warm_start(
    problem: ProblemStatement, studies: Sequence[SourceStudy], *, objective: str
) -> ProblemStatement:
    """Add evaluations from `studies`, which begin with the most important one."""
    context = _context(problem.environment)
    canonical = roles.translator(problem.space.knobs)
    vectors, contexts, targets, rows = [], [], [], []
    for study in studies:
        shift = _shift(problem.environment, study.environment, objective)
        for configuration, value in study.evaluations[-max(1, MAX_EVALUATIONS // len(studies)) :]:
            vector = _vector(problem, configuration, study.environment)
            if vector is None or value <= 0:
                continue
            vectors.append(vector)
            contexts.append(_context(study.environment))
            targets.append(math.log(value) + shift)
            rows.append(
                EarlierEvaluation(
                    environment=study.environment, knobs=canonical(configuration), shift=shift
                )
            )
    if not vectors:
        return problem
    differing = np.flatnonzero(np.ptp(np.array([context, *contexts]), axis=0))
    earlier = WarmStart(
        vectors=np.array(vectors),
        context=np.array(contexts)[:, differing],
        targets=np.array(targets),
        errors=np.full(len(targets), np.nan),
        own_context=context[differing],
    )
    return dataclasses.replace(
        problem,
        warm_start=earlier,
        earlier=tuple(rows),
        warm_start_configurations=_winners(problem, studies),
    )


def _source_studies(
    settings: StudySettings, problem: ProblemStatement, model: str, wanted: str
) -> Iterator[SourceStudy]:
    runs_dir = pathlib.Path(settings.store.runs_dir)
    if wanted != AUTO:
        for name in filter(None, wanted.split(",")):
            folder = RunFolder(runs_dir, name)
            if not folder.is_study():
                raise UsageError(f"--learn-from {name}: no such study in {runs_dir}")
            study = _read(folder, settings, problem, model)
            if study is None:
                raise UsageError(
                    f"--learn-from {name}: not a finished study of {model} with this "
                    "objective, engine and search space on such a machine"
                )
            yield study
        return
    if not runs_dir.is_dir():
        return
    found = []
    for path in sorted(runs_dir.iterdir()):
        folder = RunFolder(runs_dir, path.name)
        if path.name == settings.store.study or not folder.is_study():
            continue
        try:
            study = _read(folder, settings, problem, model)
        except TunerError:
            continue  # unreadable
        if study is not None:
            found.append(study)
    here = _context(problem.environment)
    found.sort(key=lambda one: float(np.abs(_context(one.environment) - here).sum()))
    yield from found[:MAX_STUDIES]


def _read(
    folder: RunFolder, settings: StudySettings, problem: ProblemStatement, model: str
) -> SourceStudy | None:
    if not study_files.is_finished(folder):
        return None
    kept = study_files.settings_of(folder)
    own = RunFolder(pathlib.Path(settings.store.runs_dir), str(settings.store.study))
    if _scenario_text(kept, folder) != _scenario_text(settings, own):
        return None  # the scenario has changed
    environment = folder.read_json("environment.json") or {}
    if [*_shared(kept)] != [*_shared(settings)] or not _is_same_machine(environment):
        return None
    store = study_files.store_of(folder, kept)
    facts = store.facts()
    names = {knob["name"] for knob in facts["knobs"]}
    if facts["model"] != model or names != {knob.name for knob in problem.knobs}:
        return None
    end = study_files.read_end(folder)
    return SourceStudy(
        name=folder.name,
        environment=dataclasses.replace(
            problem.environment,
            concurrency=int(facts["concurrency"]),
            client_batch=int(facts.get("client_batch", 1)),
        ),
        evaluations=tuple(
            (trial.configuration, trial.objective)
            for trial in store.trials()
            if trial.objective is not None
        ),
        winner=None if end is None else end.best,
    )


def _scenario_text(settings: StudySettings, folder: RunFolder) -> str | None:
    if settings.target.scenario is None:
        return None
    return study_files.engine_copy(folder) or user_files.text(settings.target.scenario)


def _shared(settings: StudySettings) -> Iterator[object]:
    target, measurement = settings.target, settings.measurement
    yield measurement.objective
    yield measurement.slo_ms if {"goodput", RATE} & {*measurement.names} else None
    yield prices.read(measurement.prices) if "cost" in measurement.names else None
    yield SAME_TARGET(target)
    # How metrics change with the rate of an open loop is unknown.
    yield (target.rate, target.arrivals, target.in_flight) if settings.is_open else None


def _is_same_machine(environment: Mapping[str, Any]) -> bool:
    here = machine.describe(machine.read())["host"]
    then = environment.get("host", {})
    return all(here.get(name) == then.get(name) for name in ("cores", "processor"))


def _vector(problem: ProblemStatement, configuration: Configuration, then: Environment) -> Any:
    canonical = roles.translator(problem.space.knobs)
    try:
        return problem.candidates.encode_with_features(
            configuration, lambda cell: derived_features.features(canonical(cell), then)
        )
    except (KeyError, ValueError, TunerError):
        return None


def _winners(
    problem: ProblemStatement, studies: Sequence[SourceStudy]
) -> tuple[Configuration, ...]:
    found: dict[Configuration, None] = {}
    for study in studies:
        if study.winner is None:
            continue
        place = problem.candidates.index_of(
            problem.space.canonical({**problem.default, **study.winner}, problem.environment)
        )
        if place is not None:
            found[problem.candidates.configurations[place]] = None
    return tuple(found)


def _context(environment: Environment) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    load = (environment.concurrency, environment.client_batch)
    return np.asarray(np.log2(np.array(load, dtype=float)) / LOAD_SCALE)


def _shift(now: Environment, then: Environment, objective: str) -> float:
    if objective in GROWING:
        return math.log(now.items / then.items)
    if objective == "time-per-item":
        return 0.0  # below: 1,000 requests cost more with more items, like the time between them
    return math.log(now.client_batch / then.client_batch)
