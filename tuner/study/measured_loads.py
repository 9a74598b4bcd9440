"""Output of `tune load --json`, one line for each load, as evaluations of a study's export."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from serving.system import user_files
from tuner.errors import UsageError
from tuner.measurement.outcome import EvaluationRequirements
from tuner.settings.study import StudySettings
from tuner.settings.workload import SPREADS, rate_in_words
from tuner.values.measurement import Measurement
from tuner.values.plain import parse
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.study_record import StudyRecord
from tuner.values.trial import OK, Outcome

MAX_BYTES = 64 << 20
OF_MEASUREMENT = frozenset({"requests", "blocks", "noise"})
OF_ERROR = frozenset({"error", "exit_code"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load that a server had."""

    concurrency: int
    rate_per_s: float | None
    arrivals: str | None
    client_batch: int
    deadline_ms: float | None = None
    """Deadline within which responses count as goodput, or None if that is not counted."""

    @classmethod
    def of_study(cls, record: StudyRecord, settings: StudySettings) -> Load:
        """Return the load of a study's evaluations, whose rate is known."""
        spread = (settings.target.arrivals or SPREADS[0]).partition(":")[0]
        return cls(
            concurrency=settings.target.in_flight,
            rate_per_s=record.rate_per_s,
            arrivals=None if record.rate_per_s is None else spread,
            client_batch=record.client_batch,
            deadline_ms=settings.measurement.deadline_ms,
        )

    @classmethod
    def of_line(cls, data: Mapping[str, Any], measurement: Measurement) -> Load:
        """Return the load of a line."""
        return cls(
            concurrency=int(data["concurrency"]),
            rate_per_s=measurement.rate_per_s,
            arrivals=data["arrivals"],
            client_batch=measurement.client_batch,
            deadline_ms=data["slo_ms"],
        )

    def is_as(self, wanted: Load) -> bool:
        """Whether it is what is wanted, but for how a rate is written and a deadline too many."""
        if wanted.deadline_ms not in (None, self.deadline_ms):
            return False
        rates = (self.rate_per_s or 0.0, wanted.rate_per_s or 0.0)
        other = dataclasses.replace(
            wanted, rate_per_s=self.rate_per_s, deadline_ms=self.deadline_ms
        )
        return self == other and math.isclose(*rates, rel_tol=1e-6)

    @property
    def text(self) -> str:
        """The load in words."""
        words = f"concurrency {self.concurrency}"
        if self.rate_per_s is not None:
            words = f"{rate_in_words(self.rate_per_s)} ({self.arrivals} arrivals, at most {words})"
        items = "1 item" if self.client_batch == 1 else f"{self.client_batch} items"
        deadline = "" if self.deadline_ms is None else f", a deadline of {self.deadline_ms:g} ms"
        return f"{words}, {items} in each request{deadline}"


def read(
    path: pathlib.Path, *, role: str, load: Load, needs: EvaluationRequirements
) -> list[RoundEvaluation]:
    """Read one or more loads, and ignore lines that are none; those that failed are counted.

    Raises:
        UsageError: the file is unreadable, holds no load, or one that was not `load`.
    """
    try:
        text = user_files.text(path, max_bytes=MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--measured {path}: {reason}") from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(data, dict):
            continue
        where = f"--measured {path}, line {number}"
        if data.keys() >= OF_MEASUREMENT:
            found.append(_judge(data, where, role, load, needs))
        elif data.keys() >= OF_ERROR:
            found.append(_failed(role, str(data["error"])))
    if not found:
        raise UsageError(
            f"--measured {path}: holds no measurement, expected the output of `tune load --json`, "
            "as of the job that `tune confirm --job` prints"
        )
    return found


def _judge(
    data: Mapping[str, Any], where: str, role: str, load: Load, needs: EvaluationRequirements
) -> RoundEvaluation:
    names = {field.name for field in dataclasses.fields(Measurement)}
    own = {name: data[name] for name in data.keys() & names}
    if own.get("p99_ms") is None:  # `tune load` hides a p99 of too few requests
        own["p99_ms"] = own.get("p95_ms")
    try:
        measurement = parse(Measurement, own)
        sent = Load.of_line(data, measurement)
        code, problems = int(data["exit_code"]), [str(one) for one in data["problems"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{where}: is not a whole line of `tune load --json` of this version ({error!r})"
        ) from error
    if not sent.is_as(load):
        raise UsageError(
            f"{where}: the load was {sent.text}, expected the study's, {load.text}; measure it "
            "anew, as with the job of `tune confirm --job`"
        )
    if code or problems:
        return _failed(role, "; ".join(problems) or f"the load ended with exit code {code}")
    outcome = needs.outcome_of(measurement)
    is_ok = outcome.status == OK.status
    return RoundEvaluation(role=role, outcome=outcome, measurement=measurement if is_ok else None)


def _failed(role: str, reason: str) -> RoundEvaluation:
    outcome = Outcome(status="failed", cause="errors", reason=reason)
    return RoundEvaluation(role=role, outcome=outcome, measurement=None)
