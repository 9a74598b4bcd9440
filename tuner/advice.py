"""What a user should run after a study: the default, unless something better was shown.

In: `StudyRecord`. Out: `Advice`, with its reason in one sentence, so that the terminal, `best.yaml`,
the report and `--json` say the same. Of two equal configurations the luckier one is found by any
search, so what was not shown to be better is not advised; it can be exported by its trial. Pure.
"""

from __future__ import annotations

import dataclasses

from tuner.errors import WrongUse
from tuner.settings import runs_dir_option
from tuner.values import Configuration, Outcome, StudyRecord

NOT_BETTER = {
    "no difference shown": "no difference could be shown",
    "worse": "what was found was shown to be worse",
}
NOT_MEASURED = "what was found was not measured again beside it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A configuration to run, and why."""

    configuration: Configuration
    reason: str
    """One sentence."""


def advised(record: StudyRecord) -> Advice | None:
    """The configuration to run; None where no configuration worked."""
    if record.best is None:
        return None
    if record.best == record.default:
        return _default(record, "nothing better was found")
    verdict = record.verdict
    if verdict is not None and verdict.outcome == "better":
        reason = "Use the best configuration: it was shown to be better than the default."
        return Advice(configuration=record.best, reason=reason)
    failure = failure_of_default(record)
    if failure is not None and (verdict is None or failure.status == "infeasible"):
        reason = f"Use the best configuration: the default does not work here ({failure.reason})."
        return Advice(configuration=record.best, reason=reason)
    return _default(record, NOT_MEASURED if verdict is None else NOT_BETTER[verdict.outcome])


def of_trial(record: StudyRecord, number: int) -> Advice:
    """The configuration of one trial, because the user wants it.

    Raises:
        WrongUse: there is no such trial, or its configuration did not work.
    """
    trial = next((trial for trial in record.trials if trial.number == number), None)
    if trial is None:
        numbers = [trial.number for trial in record.trials]
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise WrongUse(f"--trial {number}: study {record.name} has no such trial (trials: {known})")
    if trial.measurement is None:
        raise WrongUse(
            f"--trial {number}: its configuration did not work ({trial.outcome.reason}); "
            "choose one that was measured"
        )
    return Advice(configuration=trial.configuration, reason=f"Trial {number}, as it was asked for.")


def export_of_best(record: StudyRecord) -> str | None:
    """The command that exports the best that was found; None where it is advised anyway."""
    found = advised(record)
    if found is None or found.configuration == record.best:
        return None
    number = next(
        (t.number for t in record.trials if t.configuration == record.best and t.measurement), None
    )
    if number is None:
        return None
    store = record.settings.get("store", {})
    where = runs_dir_option(store.get("runs_dir", "runs"))
    return f"tune export {record.name} --trial {number}{where}"


def failure_of_default(record: StudyRecord) -> Outcome | None:
    """How the default failed in the search; None where a launch of it was ok, or none was made."""
    outcomes = [t.outcome for t in record.trials if t.configuration == record.default]
    is_ok = any(outcome.status == "ok" for outcome in outcomes)
    return None if is_ok or not outcomes else outcomes[-1]


def _default(record: StudyRecord, why: str) -> Advice:
    return Advice(configuration=record.default, reason=f"Stay with the default: {why}.")
