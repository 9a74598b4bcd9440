"""Study folder, read as the `StudyRecord` of reports, exports and `--json`.

During the search, the best is the one with the best measurement, and a note says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from serving.values import Signature
from tuner.engines import file as engine_file
from tuner.engines.description import COPY, SCENARIO_COPY
from tuner.errors import UsageError
from tuner.evaluation import outcomes, request_source
from tuner.launching.engine import EngineInfo, kind_of_limits
from tuner.metrics import prices
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.settings.study import StudySettings
from tuner.store import records
from tuner.store.conversion import KEYS
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study.interruption import resume_command
from tuner.study.problem import ProblemStatement
from tuner.values.configuration import Configuration
from tuner.values.confirmation import Confirmation
from tuner.values.plain import Plain, parse, to_plain
from tuner.values.request_records import RequestRecords
from tuner.values.round_evaluation import FailureCount
from tuner.values.study_record import OUR_ENGINE, InputSummary, KnobInfo, SharedModels, StudyRecord
from tuner.values.trial import Trial, best_of
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
CONFIRMATIONS_FILE = "confirmations.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnd(Plain):
    """Content of `verdict.json`, which is written once, at the end."""

    best: Configuration | None
    verdict: Verdict | None = None
    failure_counts: Mapping[str, FailureCount] = dataclasses.field(default_factory=dict)
    shortlist: tuple[ShortlistEntry, ...] = ()
    pareto_front: tuple[ParetoPoint, ...] = ()
    stopped: str = ""
    open_loop: OpenLoopCheck | None = None


def settings_of(folder: RunFolder) -> StudySettings:
    """Return a study's settings; raise UsageError if `settings.yaml` is missing or invalid."""
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
        UsageError: the folder holds no trials.
        UnknownStudy: the storage lacks the study.
        StorageFailed: the storage is unreachable.
    """
    url = url or settings.store.storage
    if url is None and not folder.database.exists():
        raise UsageError(
            f"{folder.path} holds no trials: it was interrupted too early; repeat the "
            "command with --overwrite"
        )
    return StudyStore.open_study(folder.name, database=folder.database, url=url)


def engine_copy(folder: RunFolder) -> str | None:
    """Return the text of the copied engine or scenario file, or None."""
    paths = (folder.path / name for name in (COPY, SCENARIO_COPY))
    return next((engine_file.read_text(path) for path in paths if path.exists()), None)


def facts_of(
    settings: StudySettings,
    problem: ProblemStatement,
    served: EngineInfo,
    shared: SharedModels | None = None,
    sent: InputSummary | None = None,
) -> dict[str, Any]:
    """Return facts that readers use in place of the model."""
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
        "knobs": to_plain(problem.knobs),
        "shared": to_plain(shared),
        "sent": to_plain(sent),
        "told": request_source.server_settings(settings.target),
    }


def check_same_space(store: StudyStore, problem: ProblemStatement) -> None:
    """Raise UsageError if the space on this machine is not the one that was searched."""
    before = {knob["name"]: knob["values"] for knob in store.facts()["knobs"]}
    now = {knob.name: list(knob.values) for knob in problem.knobs}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise UsageError(
                f"the study searched {name} over {before.get(name)}, but on this machine "
                f"it is {now.get(name)}: resume it on the first machine, or start a new "
                "study"
            )


def check_same_limits(folder: RunFolder, now: str) -> None:
    """Raise UsageError if a study's earlier evaluations had other limits (`EngineInfo.limits`)."""
    environment = folder.read_json("environment.json") or {}
    before = str(environment.get("limits") or now)
    if kind_of_limits(before) != kind_of_limits(now):
        raise UsageError(
            f"the study was measured with limits {before}, but here they are {now}: resume it "
            "where its limits hold, or start a new study"
        )


def save_verification_state(folder: RunFolder, ending: VerificationState) -> None:
    """Save the state of a study after its search, including its verification so far."""
    folder.write_json(VERIFICATION_STATE_FILE, ending.as_json())


def read_verification_state(folder: RunFolder) -> VerificationState | None:
    """Return the saved state, or None before the search ends; raise UsageError if it is corrupt."""
    data = folder.read_json(VERIFICATION_STATE_FILE)
    try:
        return None if data is None else VerificationState.from_json(data, renamed=KEYS)
    except (AttributeError, KeyError, TypeError) as error:
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
    """Write the end of a study."""
    end = StudyEnd(
        best=ending.best,
        verdict=verdict,
        failure_counts=outcomes.count_failures(ending.evaluations, limits),
        shortlist=ending.ranked_shortlist or (),
        pareto_front=ending.pareto_front,
        stopped=ending.stopped,
        open_loop=ending.open_loop,
    )
    folder.write_json(VERDICT_FILE, end.as_json())


def read_end(folder: RunFolder) -> StudyEnd | None:
    """Return a study's end, or None before it; raise UsageError if the file is broken."""
    data = folder.read_json(VERDICT_FILE)
    try:
        return None if data is None else StudyEnd.from_json(data, renamed=KEYS)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder.path / VERDICT_FILE} is broken ({error!r})") from error


def stopped_of(folder: RunFolder) -> str:
    """Return why the search ended, or how to continue it."""
    end = read_end(folder)
    if end is not None:
        return end.stopped
    ending = read_verification_state(folder)
    why = UNFINISHED if ending is None else f"{ending.stopped}; {UNVERIFIED}"
    return f"{why}; resume with: {resume_command(folder, from_anywhere=True)}"


def confirmations_of(folder: RunFolder) -> tuple[Confirmation, ...]:
    """Return how exports of a study were confirmed, oldest first; raise UsageError if broken."""
    data = folder.read_json(CONFIRMATIONS_FILE)
    try:
        found = () if data is None else parse(tuple[Confirmation, ...], data["confirmations"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder.path / CONFIRMATIONS_FILE} is broken ({error!r})") from error
    return tuple(found)


def add_confirmation(folder: RunFolder, found: Confirmation) -> None:
    """Save one more confirmation of a study's export."""
    kept = (*confirmations_of(folder), found)
    folder.write_json(CONFIRMATIONS_FILE, {"confirmations": to_plain(kept)})


def is_finished(folder: RunFolder) -> bool:
    """Whether the study has ended."""
    return folder.read_json(VERDICT_FILE) is not None


def read(folder: RunFolder, store: StudyStore, settings: StudySettings) -> StudyRecord:
    """Return a study's record, or raise UsageError if a file is broken."""
    facts, trials = store.facts(), store.trials()
    ending, default = read_verification_state(folder), Configuration(facts["default"])
    end = read_end(folder)
    if end is None:
        lowest = best_of(trials)
        so_far = None if lowest is None else lowest.configuration
        end = StudyEnd(best=so_far if ending is None else ending.best)
    nested = settings.as_nested()
    nested["search"]["initial"] = settings.search.first_trials
    environment = folder.read_json("environment.json") or {}
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
        pareto_front=end.pareto_front,
        knobs=parse(tuple[KnobInfo, ...], facts["knobs"]),
        trials=trials,
        default=default,
        best=end.best,
        verdict=end.verdict,
        shortlist=end.shortlist,
        open_loop=end.open_loop,
        confirmations=confirmations_of(folder),
        failure_counts=outcomes.count_failures(
            () if ending is None else ending.evaluations, settings.measurement.limits
        ),
        notes=(*store.notes(), stopped_of(folder)),
        environment=environment,
        engine=str(environment.get("engine", OUR_ENGINE)),
        engine_file=engine_copy(folder),
        settings=nested,
        is_finished=is_finished(folder),
        used_s=store.used_s() or None,
        shared=parse(SharedModels, facts.get("shared")),
        sent=parse(InputSummary, facts.get("sent")),
        told=facts.get("told", {}),
        signature=Signature.from_json(facts["signature"]) if facts.get("signature") else None,
        records=_records(folder, trials, {"default": default, "best": end.best}),
    )


def _records(
    folder: RunFolder, trials: tuple[Trial, ...], arms: Mapping[str, Configuration | None]
) -> dict[str, RequestRecords]:
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
