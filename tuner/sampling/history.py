"""A study's trials as columns of plain values, as samplers see them.

Targets are minimised: logarithms if all objectives are positive, as noise grows with them;
otherwise raw values, with a reason.

How a trial is read:

    COMPLETE, finite value                       observed
    PRUNED with a value, violates a constraint   observed if constraints are modelled, else lost
    PRUNED or FAIL with an outcome               lost: infeasible or failed
    PRUNED without outcome, with reports         stopped early by a pruner: seen, teaches nothing
    PRUNED without outcome or reports            lost: the objective rejects its parameters
    FAIL without outcome, in Luthier's own study interrupted (killed, power cut): ignored
    FAIL without outcome, in any other study     lost: the objective raised, or returned NaN
    COMPLETE, infinite value                     lost
    RUNNING, WAITING                             pending
    any, in the study's attribute `disregarded`  its machine was broken or lost: ignored

Trials of Luthier's own studies carry `origin` or `interrupted`.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.encoding import Cube
from tuner.values.configuration import Configuration

Reading = Literal["observed", "lost", "stopped", "interrupted", "pending"]

PROPOSAL = "sampler:proposal"
DISREGARDED = "disregarded"
"""The study's attribute with the numbers of trials that tell of a machine, not of a configuration."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A second metric of each evaluation: constraint excess or second objective."""

    values: Array  # (n,) log scale; NaN if unknown
    errors: Array  # (n,) standard error within the evaluation; NaN if unknown


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingData:
    """Evaluations to learn from, from one or more studies."""

    vectors: Array  # (n, d)
    targets: Array  # (n,) minimised
    errors: Array  # (n,) standard error within each evaluation, log scale; NaN if unknown
    at_s: Array  # (n,) Unix time; NaN if unknown
    log_cpu_per_request: Array  # (n,) logarithm of the CPU time per request; NaN if unknown
    scale: Literal["log", "raw"]
    knobs: int | None = None
    """Number of leading entries that are knobs, not derived; None means all."""
    earlier: int = 0
    """Number of rows of earlier studies, which are the last ones."""
    nodes: Positions | None = None  # (n,)
    """Number of each evaluation's machine, -1 in earlier studies; None: all on the same."""

    @property
    def several(self) -> Positions | None:
        """Numbers (n,) of the machines if the study's own evaluations are on several, or None."""
        if self.nodes is None or len(np.unique(self.nodes[: self.own])) < 2:
            return None
        return self.nodes

    @property
    def own(self) -> int:
        """Number of rows of the study itself."""
        return len(self.targets) - self.earlier

    def at(self, rows: Positions) -> TrainingData:
        """Return the evaluations at these rows, which must include all of earlier studies."""
        return TrainingData(
            vectors=self.vectors[rows],
            targets=self.targets[rows],
            errors=self.errors[rows],
            at_s=self.at_s[rows],
            log_cpu_per_request=self.log_cpu_per_request[rows],
            scale=self.scale,
            knobs=self.knobs,
            earlier=self.earlier,
            nodes=None if self.nodes is None else self.nodes[rows],
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class History(TrainingData):
    """Columns for encodable trials: n observed, k unsuccessful, p pending."""

    configurations: tuple[Configuration, ...]  # (n,) observed, repeats included
    headroom: Array  # (n,) logarithm of peak memory over limit; NaN if unknown
    scale_reason: str
    """Why the scale is raw, or ""."""
    sign: float
    """1 to minimise, -1 to maximise."""
    lost_configurations: tuple[Configuration, ...]  # (k,)
    lost_vectors: Array  # (k, d)
    killed_vectors: Array  # the unsuccessful ones that ran out of memory
    pending_vectors: Array  # (p, d)
    seen: frozenset[Configuration]
    """All configurations proposed, measured or waiting, except interrupted ones."""
    trial_count: int
    hyperparameters: tuple[float, ...]
    node_names: tuple[str, ...] = ()
    """Names of the machines, by their numbers."""
    slacks: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """Log excess over each metric constraint."""
    second: Column | None = None
    """Logarithms of a second objective, minimised."""

    @property
    def is_blank(self) -> bool:
        """Whether no trial has taught anything yet."""
        return not len(self.targets) and not len(self.lost_vectors)

    def value_of(self, target: float) -> float:
        """Return the objective in the study's unit (a median, if targets are logs)."""
        if self.scale == "raw":
            return self.sign * target
        return math.exp(self.sign * target)


def read(trial: FrozenTrial) -> Reading:
    """Classify a trial as described in the module's table."""
    if trial.state in {TrialState.RUNNING, TrialState.WAITING}:
        return "pending"
    if trial.state is TrialState.COMPLETE:
        return "observed" if trial.value is not None and math.isfinite(trial.value) else "lost"
    if "outcome" in trial.user_attrs:
        return "lost"
    if trial.state is TrialState.PRUNED:
        return "stopped" if trial.intermediate_values else "lost"
    return "interrupted" if {"origin", "interrupted"} & trial.user_attrs.keys() else "lost"


def parameters_of(trial: FrozenTrial) -> Mapping[str, Any]:
    """Return a trial's values as run, or else as suggested or planned."""
    stated = trial.user_attrs.get("configuration")
    proposed = trial.user_attrs.get(PROPOSAL, {}).get("configuration", {})
    fixed = trial.system_attrs.get("fixed_params", {}) if not trial.state.is_finished() else {}
    return {**proposed, **fixed, **trial.params, **(stated or {})}


def shared_distributions(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the parameters that every ended trial has, with the same distributions.

    Failed trials, which may lack parameters, count only if all trials failed.
    """
    ended = [trial for trial in trials if trial.state.is_finished() and trial.distributions]
    whole = [trial for trial in ended if trial.state is not TrialState.FAIL] or ended
    if not whole:
        return {}
    shared = dict(whole[-1].distributions)
    for trial in whole:
        shared = {
            name: dist
            for name, dist in shared.items()
            if (other := trial.distributions.get(name)) is dist or other == dist
        }
    return dict(sorted(shared.items()))


class _Row(NamedTuple):
    reading: Reading
    configuration: Configuration
    vector: Array  # (d,)
    value: float | None
    told: Mapping[str, Any]

    def number(self, name: str) -> float:
        return float(self.told.get(name, math.nan))


_known: weakref.WeakKeyDictionary[CandidateSet, dict[int, tuple[FrozenTrial, _Row | None]]] = (
    weakref.WeakKeyDictionary()
)
"""Rows of ended trials, which do not change, by the trial's identity."""


def _rows(
    trials: Iterable[FrozenTrial], place: Cube | CandidateSet, *, with_missed: bool
) -> Iterator[_Row]:
    before = _known.get(place, {}) if isinstance(place, CandidateSet) else {}
    known: dict[int, tuple[FrozenTrial, _Row | None]] = {}
    for trial in trials:
        same, row = before.get(id(trial), (None, None))
        if same is not trial:
            row = _row_of(trial, place)
        if trial.state.is_finished():
            known[id(trial)] = trial, row
        if row is None:
            continue
        missed = _infeasible_value(trial) if with_missed and row.value is None else None
        yield row if missed is None else row._replace(reading="observed", value=missed)
    if isinstance(place, CandidateSet):
        _known[place] = known


def _row_of(trial: FrozenTrial, place: Cube | CandidateSet) -> _Row | None:
    values = parameters_of(trial)
    if not values.keys() >= place.names:
        return None
    configuration = Configuration({name: values[name] for name in place.names})
    vector = place.vector_of(configuration)
    reading = read(trial)
    value = trial.value if reading == "observed" else None
    return None if vector is None else _Row(reading, configuration, vector, value, trial.user_attrs)


def gather(
    trials: Iterable[FrozenTrial],
    place: Cube | CandidateSet,
    *,
    number: int | None,
    maximise: bool,
    with_missed: bool = False,
    disregarded: Collection[int] = (),
) -> History:
    """Read a study's trials; those outside `place` are only counted.

    Args:
        number: the trial being proposed, which is left out; None to read all.
        with_missed: whether evaluations that violate constraints count as observed.
        disregarded: numbers of trials that are ignored.
    """
    ignored = {number, *disregarded}
    kept = [one for one in trials if one.number not in ignored and read(one) != "interrupted"]
    earlier = [one for one in kept if number is None or one.number < number]
    proposals = [one.user_attrs.get(PROPOSAL, {}) for one in reversed(kept)]
    rows = list(_rows(kept, place, with_missed=with_missed))
    observed, lost, pending = (
        [row for row in rows if row.reading == reading]
        for reading in ("observed", "lost", "pending")
    )
    killed = [row for row in lost if row.told.get("outcome", {}).get("cause") == "oom"]
    sign = -1.0 if maximise else 1.0
    nodes, numbers = _numbers([row.told.get("facts", {}).get("node", "") for row in observed])
    targets, reason = to_targets(_floats(row.value or 0.0 for row in observed), sign)
    return History(
        configurations=tuple(row.configuration for row in observed),
        vectors=_vectors(observed, place.width),
        targets=targets,
        errors=_floats(row.number("error") for row in observed),
        headroom=_floats(row.number("headroom") for row in observed),
        at_s=_floats(row.told.get("facts", {}).get("started_at", math.nan) for row in observed),
        nodes=nodes,
        node_names=tuple(numbers),
        log_cpu_per_request=_floats(row.number("effort") for row in observed),
        scale="raw" if reason else "log",
        scale_reason=reason,
        sign=sign,
        lost_configurations=tuple(row.configuration for row in lost),
        lost_vectors=_vectors(lost, place.width),
        killed_vectors=_vectors(killed, place.width),
        pending_vectors=_vectors(pending, place.width),
        seen=frozenset(row.configuration for row in rows),
        trial_count=sum(one.state is not TrialState.WAITING for one in earlier),
        hyperparameters=_latest(proposals, "hyperparameters"),
        slacks=_columns([row.told.get("slacks", {}) for row in observed]),
        second=_columns(
            [{"second": row.told["second"]} if row.told.get("second") else {} for row in observed]
        ).get("second"),
    )


def _latest(proposals: Iterable[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(next(filter(None, (proposal.get(name) for proposal in proposals)), ()))


def _numbers(names: Sequence[str]) -> tuple[Positions, dict[str, int]]:
    """Return the numbers (n,) of names, in the order of their first appearance, and by name."""
    known: dict[str, int] = {}
    numbers = [known.setdefault(name, len(known)) for name in names]
    return np.array(numbers, dtype=np.intp), known


def _floats(values: Iterable[float]) -> Array:
    return np.array(list(values), dtype=float)


def _vectors(rows: Iterable[_Row], width: int) -> Array:
    return np.array([row.vector for row in rows], dtype=float).reshape(-1, width)


def _infeasible_value(trial: FrozenTrial) -> float | None:
    value = trial.user_attrs.get("value")
    is_told = trial.state is TrialState.PRUNED and value is not None and math.isfinite(value)
    return float(value) if is_told and value is not None else None


def _columns(rows: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, Column]:
    found = {}
    for text in dict.fromkeys(text for row in rows for text in row):
        pairs = [row.get(text, (None, None)) for row in rows]
        values, errors = (
            np.array([math.nan if pair[k] is None else float(pair[k] or 0.0) for pair in pairs])
            for k in (0, 1)
        )
        found[text] = Column(values=values, errors=errors)
    return found


def to_targets(values: Array, sign: float) -> tuple[Array, str]:
    """Return the targets (n,) to minimise, and why they are not logarithms, or ""."""
    if bool(np.all(values > 0)):
        return sign * np.log(values), ""
    return sign * values, f"{int(np.sum(values <= 0))} of {len(values)} objectives are not positive"
