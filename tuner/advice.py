"""Recommendation after a study: the default, unless something better was shown.

Of two identical configurations, a search finds the luckier, so the best is recommended only if
shown to be better and to fail no more often. A configuration works if any of its evaluations did.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Literal

from tuner.errors import UsageError
from tuner.settings.recommended_commands import storage_option
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import FailureCount
from tuner.values.study_record import StudyRecord
from tuner.values.verdict import Verdict

BestStatus = Literal[
    "same",
    "nothing works",
    "default lost",
    "best fails",
    "default fails",
    "better",
    "traded",
    "worse",
    "no difference shown",
    "not compared",
    "not measured",
]

ADVISED = frozenset({"default lost", "default fails", "better", "traded"})
"""Statuses in which the best is recommended."""

REASONS: Mapping[BestStatus, str] = {
    "same": "no better configuration was found",
    "better": "it was shown to be better than the default",
    "worse": "the best found was shown to be worse",
    "no difference shown": "no difference was shown",
    "not compared": "too few pairs of evaluations worked to compare them",
    "not measured": "the best found was not re-evaluated beside it",
}
"""Reason for each status that needs no figures."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The configuration to run, and why."""

    configuration: Configuration
    reason: str


def best_status(record: StudyRecord) -> BestStatus | None:
    """Return how the best compares with the default, or None if nothing worked in the search."""
    if record.best is None:
        return None
    if record.best == record.default:
        return "same"
    default, best = failure_counts(record)
    if trouble_of_default(record) is not None:
        return "nothing works" if best.all_failed else "default lost"
    if best.failed > default.failed:
        return "best fails"
    if default.mostly_failed and not best.mostly_failed:
        return "default fails"
    if record.verdict is not None:
        return _verdict_status(record.verdict)
    return "not compared" if default.failed else "not measured"


def _verdict_status(verdict: Verdict) -> BestStatus:
    if verdict.second is None:
        return verdict.outcome
    both = {verdict.outcome, verdict.second.outcome}
    if both == {"better", "worse"}:
        return "traded"
    return next((one for one in ("better", "worse") if one in both), "no difference shown")


def advise(record: StudyRecord) -> Advice | None:
    """Return the configuration to run, or None if none worked."""
    found = best_status(record)
    if record.best is None or found is None or found == "nothing works":
        return None
    reason = _reason(found, record)
    if found in ADVISED:
        return Advice(configuration=record.best, reason=f"Use the best configuration: {reason}.")
    return Advice(configuration=record.default, reason=f"Stay with the default: {reason}.")


def why_nothing(record: StudyRecord) -> str:
    """Return the reason why nothing is recommended."""
    _, best = failure_counts(record)
    if best.all_failed:
        return f"the best configuration found {failure_text(best)}"
    return record.trials[-1].outcome.reason if record.trials else "no trial was run"


def of_trial(record: StudyRecord, number: int) -> Advice:
    """Return advice to run a trial's configuration, or raise UsageError if it did not work."""
    trial = next((trial for trial in record.trials if trial.number == number), None)
    if trial is None:
        numbers = [trial.number for trial in record.trials]
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise UsageError(
            f"--trial {number}: study {record.name} has no such trial (trials: {known})"
        )
    if trial.measurement is None:
        raise UsageError(
            f"--trial {number}: its configuration did not work ({trial.outcome.reason}); "
            "choose one that was measured"
        )
    return Advice(configuration=trial.configuration, reason=f"Trial {number}, as requested.")


def export_of_best(record: StudyRecord) -> str | None:
    """Return the command that exports the best, or None if it is recommended anyway."""
    found = advise(record)
    if found is None or found.configuration == record.best:
        return None
    number = next(
        (t.number for t in record.trials if t.configuration == record.best and t.measurement), None
    )
    if number is None:
        return None
    storage = storage_option(record.settings.get("store", {}).get("storage"))
    to = " --to engine" if record.is_of_other_engine else ""
    if record.shared is not None:  # several files
        to = f" --out trial-{number}"
    return f"tune export {shlex.quote(record.folder)} --trial {number}{to}{storage}"


def failure_counts(record: StudyRecord) -> tuple[FailureCount, FailureCount]:
    """Return the failure counts of default and best, both empty without a verification."""
    none = FailureCount()
    return record.failure_counts.get("default", none), record.failure_counts.get("best", none)


def trouble_of_default(record: StudyRecord) -> str | None:
    """Return why the default does not work, or None if it works or is unknown."""
    default, _ = failure_counts(record)
    outcomes = [t.outcome for t in record.trials if t.configuration == record.default]
    is_ok = any(outcome.status == "ok" for outcome in outcomes)
    if is_ok or default.evaluations > default.failed:
        return None
    return default.reason or (outcomes[-1].reason if outcomes else None)


def failure_text(tally: FailureCount) -> str:
    """Describe an arm's failed evaluations, for the end of a sentence."""
    return f"failed {tally.failed} of {tally.evaluations} evaluations ({tally.reason})"


def share(tally: FailureCount) -> str:
    """Return in words how many of an arm's evaluations failed."""
    return f"{tally.failed} of {tally.evaluations}" if tally.failed else "none"


def failures(record: StudyRecord) -> Iterator[str]:
    """Yield a sentence for each arm with failures."""
    for role, tally in record.failure_counts.items():
        if tally.failed:
            yield f"The {role} configuration {failure_text(tally)}."


def _reason(found: BestStatus, record: StudyRecord) -> str:
    default, best = failure_counts(record)
    if found == "same" and all(t.configuration == record.default for t in record.trials):
        return "only the default was evaluated"
    if found == "default lost":
        but = f", but the best {failure_text(best)} itself" if best.failed else ""
        return f"the default does not work here ({trouble_of_default(record)}){but}"
    if found == "best fails":
        return f"the best found {failure_text(best)}, the default {share(default)}"
    if found == "default fails":
        return f"the default {failure_text(default)}, the best {share(best)}"
    if record.second is not None and found in {"better", "traded"}:
        return _of_front(found, record)
    if found == "better" and record.verdict is not None:
        other_day = record.verdict.between_session_interval
        if other_day.low is not None and other_day.low <= 1 <= (other_day.high or 0):
            return f"{REASONS[found]}; on another day the difference may vanish"
    return REASONS[found]


def _of_front(found: BestStatus, record: StudyRecord) -> str:
    point = record.settings.get("measurement", {}).get("point", "knee")
    which = "the knee" if point == "knee" else f"the best in {point}"
    shown = {record.objective: record.verdict.outcome} if record.verdict is not None else {}
    if record.verdict is not None and record.verdict.second is not None:
        shown[record.verdict.second.objective] = record.verdict.second.outcome
    words = " and ".join(
        f"{outcome} in {name}"
        for name, outcome in shown.items()
        if outcome != "no difference shown"
    )
    traded = "; others on the front make other trades" if found == "traded" else ""
    count = len(record.pareto_front)
    return (
        f"it is {which} of a front of {count} point{'s' * (count > 1)}, and was shown to be "
        f"{words}{traded}"
    )
