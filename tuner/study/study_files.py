"""Study folder, read as `StudyRecord` by reports, exports and `--json`.

During the search the best is the lowest measurement, which a note says. `verdict.json` is written
once at the end: {"best", "verdict", "failure_counts", "shortlist", "pareto_front", "stopped", "open_loop"}.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from serving.values import Signature
from tuner.engines import file as engine_file
from tuner.engines.description import COPY, SCENARIO_COPY
from tuner.errors import UsageError
from tuner.evaluation import outcomes, request_source
from tuner.evaluation.simulation.profile import CostProfile
from tuner.launching.engine import EngineInfo
from tuner.metrics import prices
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.settings.study import StudySettings
from tuner.store import records
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study.interruption import resume_command
from tuner.study.problem import ProblemStatement
from tuner.values.configuration import Configuration
from tuner.values.request_records import RequestRecords
from tuner.values.study_record import OUR_ENGINE, InputSummary, KnobInfo, SharedModels, StudyRecord
from tuner.values.trial import Trial
from tuner.values.verdict import Verdict
from tuner.values.verification_state import (
    OpenLoopCheck,
    ParetoPoint,
    ShortlistEntry,
    VerificationState,
)

UNFINISHED = (
    "the study is not finished: its best is the best single measurement so far, which is "
    "partly luck"
)
UNVERIFIED = "the verification is not finished"
VERDICT_FILE = "verdict.json"
VERIFICATION_STATE_FILE = "verification/evaluations.json"


def settings_of(folder: RunFolder) -> StudySettings:
    """Return a study's settings.

    Raises:
        UsageError: `settings.yaml` is missing or invalid.
    """
    kept = StudySettings.from_nested(folder.settings(), source=str(folder.path / "settings.yaml"))
    copy = folder.path / prices.COPY
    if not copy.exists():
        return kept
    return dataclasses.replace(
        kept, measurement=dataclasses.replace(kept.measurement, prices=str(copy))
    )


def store_of(folder: RunFolder, settings: StudySettings, *, url: str | None = None) -> StudyStore:
    """Return a study's store.

    Args:
        url: replaces the saved URL, which lacks its password.

    Raises:
        UsageError: the folder has no trials.
        UnknownStudy, StorageFailed: missing or unreachable.
    """
    url = url or settings.store.storage
    if url is None and not folder.database.exists():
        raise UsageError(
            f"{folder.path} holds no trials: it was interrupted too early; repeat the "
            "command with --overwrite"
        )
    return StudyStore.open_study(folder.name, database=folder.database, url=url)


def engine_copy(folder: RunFolder) -> pathlib.Path | None:
    """Return the copied engine or scenario file, if any."""
    paths = (folder.path / name for name in (COPY, SCENARIO_COPY))
    return next((path for path in paths if path.exists()), None)


def facts_of(
    settings: StudySettings,
    problem: ProblemStatement,
    served: EngineInfo,
    profile: CostProfile | None = None,
    shared: SharedModels | None = None,
    sent: InputSummary | None = None,
) -> dict[str, Any]:
    """Return facts that replace the model for readers."""
    return {
        "model": served.model,
        "signature": None if served.signature is None else served.signature.as_json(),
        "concurrency": settings.target.in_flight,
        "rate_per_s": problem.environment.rate_per_s,
        "client_batch": settings.target.client_batch,
        "objective": settings.measurement.first,
        "second": settings.measurement.second,
        "sampler": settings.search.sampler,
        "candidates": len(problem.candidates.configurations),
        "default": dict(problem.default),
        "knobs": [dataclasses.asdict(knob) for knob in problem.knobs],
        "profile": None if profile is None else profile.as_json(),
        "shared": None if shared is None else shared.as_json(),
        "sent": None if sent is None else sent.as_json(),
        "told": request_source.server_settings(settings.target),
    }


def profile_of(store: StudyStore) -> CostProfile | None:
    """Return the study's profile."""
    kept = store.facts().get("profile")
    return None if kept is None else CostProfile.from_json(kept)


def check_same_space(store: StudyStore, problem: ProblemStatement) -> None:
    """Check that this machine's space is the searched one.

    Raises:
        UsageError: machine or limits changed it.
    """
    before = {knob["name"]: knob["values"] for knob in store.facts()["knobs"]}
    now = {knob.name: list(knob.values) for knob in problem.knobs}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise UsageError(
                f"the study searched {name} over {before.get(name)}, but on this machine "
                f"it is {now.get(name)}: resume it on the first machine, or start a new "
                "study"
            )


def save_verification_state(folder: RunFolder, ending: VerificationState) -> None:
    """Save the search's end and verification so far."""
    folder.write_json(VERIFICATION_STATE_FILE, ending.as_json())


def read_verification_state(folder: RunFolder) -> VerificationState | None:
    """Return that state; None during the search.

    Raises:
        UsageError: the file is broken.
    """
    data = folder.read_json(VERIFICATION_STATE_FILE)
    try:
        return None if data is None else VerificationState.from_json(data)
    except (KeyError, TypeError) as error:
        path = folder.path / VERIFICATION_STATE_FILE
        raise UsageError(
            f"{path} is broken ({error!r}); remove it to repeat the verification"
        ) from error


def save_end(
    folder: RunFolder,
    ending: VerificationState,
    verdict: Verdict | None,
    *,
    limits: Sequence[MetricConstraint] = (),
) -> None:
    """Write a study's end."""
    tallies = outcomes.count_failures(ending.starts, limits)
    folder.write_json(
        VERDICT_FILE,
        {
            "best": None if ending.best is None else dict(ending.best),
            "verdict": None if verdict is None else verdict.as_json(),
            "failure_counts": {role: dataclasses.asdict(tally) for role, tally in tallies.items()},
            "shortlist": [one.as_json() for one in ending.ranked_shortlist or ()],
            "pareto_front": [point.as_json() for point in ending.pareto_front],
            "stopped": ending.stopped,
            "open_loop": None if ending.open_loop is None else ending.open_loop.as_json(),
        },
    )


def stopped_of(folder: RunFolder) -> str:
    """Return why the search ended, or how to continue."""
    end = folder.read_json(VERDICT_FILE)
    if end is not None:
        return str(end["stopped"])
    ending = read_verification_state(folder)
    why = UNFINISHED if ending is None else f"{ending.stopped}; {UNVERIFIED}"
    return f"{why}; resume with: {resume_command(folder, from_anywhere=True)}"


def is_finished(folder: RunFolder) -> bool:
    """Whether the study has ended."""
    return folder.read_json(VERDICT_FILE) is not None


def read(folder: RunFolder, store: StudyStore, settings: StudySettings) -> StudyRecord:
    """Return a study's record.

    Raises:
        UsageError: a file is broken.
    """
    facts, trials = store.facts(), store.trials()
    end, ending = folder.read_json(VERDICT_FILE), read_verification_state(folder)
    default = Configuration(facts["default"])
    if end is not None:
        best = None if end["best"] is None else Configuration(end["best"])
    else:
        best = _best_so_far(trials) if ending is None else ending.best
    standings = (
        () if end is None else tuple(map(ShortlistEntry.from_json, end.get("shortlist", ())))
    )
    verdict = None if end is None or end["verdict"] is None else Verdict.from_json(end["verdict"])
    open_loop = None if end is None else end.get("open_loop")
    environment = folder.read_json("environment.json") or {}
    copy = engine_copy(folder)
    return StudyRecord(
        name=folder.name,
        folder=str(folder.path.absolute()),
        model=str(facts["model"]),
        concurrency=int(facts["concurrency"]),
        rate_per_s=facts.get("rate_per_s"),
        client_batch=int(facts.get("client_batch", 1)),
        sampler=str(facts["sampler"]),
        objective=str(facts["objective"]),
        second=facts.get("second"),
        pareto_front=()
        if end is None
        else tuple(map(ParetoPoint.from_json, end.get("pareto_front", ()))),
        knobs=tuple(
            KnobInfo(**{**knob, "values": tuple(knob["values"])}) for knob in facts["knobs"]
        ),
        trials=trials,
        default=default,
        best=best,
        verdict=verdict,
        shortlist=standings,
        open_loop=None if open_loop is None else OpenLoopCheck.from_json(open_loop),
        failure_counts=outcomes.count_failures(
            () if ending is None else ending.starts, settings.measurement.limits
        ),
        notes=(*store.notes(), stopped_of(folder)),
        environment=environment,
        engine=str(environment.get("engine", OUR_ENGINE)),
        engine_file=None if copy is None else engine_file.read_text(copy),
        settings=_with_effective(settings),
        is_finished=end is not None,
        used_s=store.used_s() or None,
        shared=SharedModels.from_json(facts["shared"]) if facts.get("shared") else None,
        sent=InputSummary.from_json(facts["sent"]) if facts.get("sent") else None,
        told=facts.get("told", {}),
        signature=Signature.from_json(facts["signature"]) if facts.get("signature") else None,
        records=_records(folder, trials, {"default": default, "best": best}),
    )


def _with_effective(settings: StudySettings) -> dict[str, Any]:
    nested = settings.as_nested()
    nested["search"]["initial"] = settings.search.first_trials
    return nested


def _best_so_far(trials: tuple[Trial, ...]) -> Configuration | None:
    ok = [trial for trial in trials if trial.objective is not None]
    best = min(ok, key=lambda trial: trial.objective or 0.0, default=None)
    return None if best is None else best.configuration


def _records(
    folder: RunFolder, trials: tuple[Trial, ...], arms: Mapping[str, Configuration | None]
) -> dict[str, RequestRecords]:
    """Return each arm's verification requests, else the search's."""
    found: dict[str, RequestRecords] = {}
    for role, configuration in arms.items():
        paths = [folder.path / "verification" / f"{role}.npz"]
        paths += [
            folder.path / "trials" / str(trial.number) / "requests.npz"
            for trial in trials
            if trial.configuration == configuration and trial.objective is not None
        ]
        kept = next((kept for path in paths if (kept := records.read(path)) is not None), None)
        if kept is not None:
            found[role] = kept
    return found
