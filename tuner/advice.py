"""What a user should run after a study: the default, unless something better was shown.

In: `StudyRecord`. Out: how the best that was found stands beside the default, and the `Advice` that
follows from it, with its reason in one sentence, so that the terminal, `best.yaml`, the report and
`--json` say the same. Pure.

Of two equal configurations the luckier one is found by any search, so what was not shown to be
better is not advised; it can be exported by its trial. A fresh start that failed is evidence as
well, however good the figures of the others are: what fails more often than the default is not
advised. A configuration does not work where no launch of it did, in the search or afresh.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Literal

from tuner.errors import WrongUse
from tuner.settings import storage_option
from tuner.values import Configuration, StudyRecord, Tally, Verdict

Standing = Literal[
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
"""How the best stands beside the default; see `standing`."""

IS_BEST_ADVISED: Mapping[Standing, bool] = {
    "same": False,
    "default lost": True,
    "best fails": False,
    "default fails": True,
    "better": True,
    "traded": True,
    "worse": False,
    "no difference shown": False,
    "not compared": False,
    "not measured": False,
}
"""What follows from each; without `nothing works`, from which nothing does."""

REASONS: Mapping[Standing, str] = {
    "same": "nothing better was found",
    "better": "it was shown to be better than the default",
    "worse": "what was found was shown to be worse",
    "no difference shown": "no difference could be shown",
    "not compared": "too few pairs of fresh starts worked to compare them",
    "not measured": "what was found was not measured again beside it",
}
"""Why, where the reason has no figures in it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A configuration to run, and why."""

    configuration: Configuration
    reason: str
    """One sentence."""


def standing(record: StudyRecord) -> Standing | None:
    """How the best stands beside the default; None where no configuration worked in the search."""
    if record.best is None:
        return None
    if record.best == record.default:
        return "same"
    default, best = tallies(record)
    if trouble_of_default(record) is not None:
        return "nothing works" if best.all_failed else "default lost"
    if best.failed > default.failed:
        return "best fails"
    if default.mostly_failed and not best.mostly_failed:
        return "default fails"
    if record.verdict is not None:
        return _shown(record.verdict)
    return "not compared" if default.failed else "not measured"


def _shown(verdict: Verdict) -> Standing:
    """What the verdict shows; of two objectives what both show together."""
    if verdict.second is None:
        return verdict.outcome
    both = {verdict.outcome, verdict.second.outcome}
    if both == {"better", "worse"}:
        return "traded"
    return next((one for one in ("better", "worse") if one in both), "no difference shown")


def advised(record: StudyRecord) -> Advice | None:
    """The configuration to run; None where no configuration worked."""
    found = standing(record)
    if record.best is None or found is None or found == "nothing works":
        return None
    reason = _reason(found, record)
    if IS_BEST_ADVISED[found]:
        return Advice(configuration=record.best, reason=f"Use the best configuration: {reason}.")
    return Advice(configuration=record.default, reason=f"Stay with the default: {reason}.")


def why_nothing(record: StudyRecord) -> str:
    """The last reason for which nothing can be advised."""
    _, best = tallies(record)
    if best.all_failed:
        return f"the best that was found {failed(best)}"
    return record.trials[-1].outcome.reason if record.trials else "no trial was run"


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
    """The command that exports the best that was found; None where it is advised anyway.

    It names the study by its folder, because it stands in files that are read anywhere.
    """
    found = advised(record)
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


def tallies(record: StudyRecord) -> tuple[Tally, Tally]:
    """Fresh starts of default and best; of none launched where there was no verification."""
    none = Tally()
    return record.fresh_starts.get("default", none), record.fresh_starts.get("best", none)


def trouble_of_default(record: StudyRecord) -> str | None:
    """Why the default does not work; None where a launch of it was ok, or none was made."""
    default, _ = tallies(record)
    outcomes = [t.outcome for t in record.trials if t.configuration == record.default]
    is_ok = any(outcome.status == "ok" for outcome in outcomes)
    if is_ok or default.launched > default.failed:
        return None
    return default.reason or (outcomes[-1].reason if outcomes else None)


def failed(tally: Tally) -> str:
    """That fresh starts failed, with the last reason, as the end of a sentence."""
    return f"failed {tally.failed} of {tally.launched} fresh starts ({tally.reason})"


def share(tally: Tally) -> str:
    """How many failed, beside another that did."""
    return f"{tally.failed} of {tally.launched}" if tally.failed else "none"


def failures(record: StudyRecord) -> Iterator[str]:
    """A sentence for each role whose fresh starts did not all work."""
    for role, tally in record.fresh_starts.items():
        if tally.failed:
            yield f"The {role} configuration {failed(tally)}."


def _reason(found: Standing, record: StudyRecord) -> str:
    default, best = tallies(record)
    if found == "same" and all(t.configuration == record.default for t in record.trials):
        return "nothing else was launched"
    if found == "default lost":
        but = f", but the best {failed(best)} itself" if best.failed else ""
        return f"the default does not work here ({trouble_of_default(record)}){but}"
    if found == "best fails":
        return f"what was found {failed(best)}, the default {share(default)}"
    if found == "default fails":
        return f"the default {failed(default)}, the best {share(best)}"
    if record.second is not None and found in {"better", "traded"}:
        return _of_front(found, record)
    return REASONS[found]


def _of_front(found: Standing, record: StudyRecord) -> str:
    """Which point of the front it is, and what it was shown to be."""
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
    traded = "; others of the front trade otherwise" if found == "traded" else ""
    count = len(record.front)
    return f"it is {which} of a front of {count} point{'s' * (count > 1)}, and was shown to be {words}{traded}"
