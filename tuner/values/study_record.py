"""Study as read by reports, exports and comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from serving.values import Signature
from tuner.values.configuration import Configuration, Value
from tuner.values.confirmation import Confirmation
from tuner.values.plain import Plain
from tuner.values.request_records import RequestRecords
from tuner.values.round_evaluation import FailureCount
from tuner.values.trial import Trial
from tuner.values.verdict import Verdict
from tuner.values.verification_state import OpenLoopCheck, ParetoPoint, ShortlistEntry

OUR_ENGINE = "luthier"
"""Luthier's name in `--engine` and reports."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnobInfo:
    """Knob that was searched, as shown in reports."""

    name: str
    unit: str
    scale: Literal["linear", "log"]
    values: tuple[Value, ...]
    """Grid of values that were searched, in order."""
    default: Value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedModels(Plain):
    """Models of a scenario, which share replicas."""

    groups: Mapping[str, tuple[str, int]]
    """Model and number of copies (named NAME-0, NAME-1, ...) by group."""
    settings: Mapping[str, Value]
    """Default server settings."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """Description of a model input and of the values sent for it."""

    name: str
    datatype: str
    shape: str
    """Shape with dimension names, such as `[items, 3, height, width]`; `?` if unnamed."""
    items: str
    """Item axis, with the reason for it."""
    free: tuple[str, ...]
    sent: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputSummary(Plain):
    """Inputs that a study sends."""

    inputs: tuple[InputFacts, ...]
    whole: str
    """Why the model is unbatched; empty if it is batched."""
    source: str

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per input, and one more if the model is unbatched."""
        told = [f"input {one.name} {one.datatype} {one.shape}: {one.sent}" for one in self.inputs]
        if self.whole:
            told.append(f"served whole, one request at a time: {self.whole}")
        return tuple(told)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """Everything that reports and exports know about a study."""

    name: str
    folder: str
    model: str
    concurrency: int
    sampler: str
    objective: str
    """Key of `tuner.metrics.objective.OBJECTIVES`."""
    knobs: tuple[KnobInfo, ...]
    trials: tuple[Trial, ...]
    default: Configuration
    best: Configuration | None
    verdict: Verdict | None
    """Verdict, or None if there are fewer than two complete pairs."""
    failure_counts: Mapping[str, FailureCount]
    """Failure counts of the verification by arm."""
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    records: Mapping[str, RequestRecords]
    """Requests of the arms "default" and "best"."""
    is_finished: bool = True
    """False during search and verification."""
    engine: str = OUR_ENGINE
    engine_file: str | None = None
    used_s: float | None = None
    """Seconds used by all commands."""
    signature: Signature | None = None
    """Model's signature, or None in old studies."""
    client_batch: int = 1
    shortlist: tuple[ShortlistEntry, ...] = ()
    """Shortlist, best first; empty if there was no choice."""
    second: str | None = None
    pareto_front: tuple[ParetoPoint, ...] = ()
    """Pareto front, ordered from the best in the first objective."""
    rate_per_s: float | None = None
    """Requests due per second, or None in a closed loop."""
    shared: SharedModels | None = None
    sent: InputSummary | None = None
    """Inputs that were sent, or None for scenarios and old studies."""
    told: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Input declarations that the model's file lacks, as `model.shapes` and `model.values`."""
    open_loop: OpenLoopCheck | None = None
    confirmations: tuple[Confirmation, ...] = ()
    """How exports were confirmed where they run, oldest first."""

    @property
    def is_open(self) -> bool:
        """Whether the study uses an open loop."""
        return self.rate_per_s is not None or self.objective == "rate"

    @property
    def offered_per_s(self) -> float | None:
        """Mean number of requests due per second in a scenario's evaluations."""
        if self.shared is None:
            return None
        told = () if self.verdict is None else (*self.verdict.default, *self.verdict.best)
        told = told or tuple(trial.measurement for trial in self.trials if trial.measurement)
        seconds = sum(one.seconds for one in told)
        return sum(one.offered_per_s * one.seconds for one in told) / seconds if seconds else None

    @property
    def arrivals(self) -> str | None:
        """Arrival process of an open loop, as given."""
        asked = self.settings.get("target", {}).get("arrivals")
        return None if asked is None else str(asked)

    @property
    def is_of_other_engine(self) -> bool:
        """Whether the engine is not Luthier."""
        return self.engine != OUR_ENGINE

    @property
    def scenario(self) -> str | None:
        """Scenario file, or None."""
        asked = self.settings.get("target", {}).get("scenario")
        return None if asked is None else str(asked)

    @property
    def served_model(self) -> str | None:
        """Model with which to start a server, or None if models are deployed later."""
        return self.target if self.scenario is None else None

    @property
    def target(self) -> str:
        """Model as named in commands: a bundled name or a path."""
        return str(self.settings.get("target", {}).get("model") or self.model)

    @property
    def is_trusted(self) -> bool:
        """Whether the model may run code from its files."""
        return bool(self.settings.get("target", {}).get("trust"))

    @property
    def spawner(self) -> str:
        """How Luthier's replicas are started (`replica.spawner`)."""
        return str(self.settings.get("target", {}).get("spawner") or "process")

    @property
    def limits(self) -> str:
        """What was limited: each replica (`each`), or the whole server (`pod`)."""
        return str(self.settings.get("target", {}).get("limits") or "each")
