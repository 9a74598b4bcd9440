"""What a study has taught so far, as a sampler sees it: columns of plain values, read from Optuna trials.

In: the trials of a study before one is proposed, and the candidates that give configurations
their place in the unit cube. Out: `History`. Objectives come in the study's unit (ms for
latencies) and leave as targets that are always minimised: the logarithm where all values are
positive (latencies differ by factors, and noise grows with them), else the value itself, with a
reason.

How a trial is read:

    COMPLETE, finite value                       observed
    PRUNED with a value, beyond a limit          observed by who models limits (`within_limits`), else lost
    PRUNED or FAIL with an outcome               lost: infeasible or failed (a wall, not a bad score)
    PRUNED without outcome, with reports         stopped early by a pruner: seen, teaches nothing
    PRUNED without outcome or reports            lost: an objective that refuses its parameters
    FAIL without outcome, in a study of ours     interrupted (a kill, a power cut): as if it had not been
    FAIL without outcome, in any other study     lost: the objective raised, or returned NaN
    COMPLETE, infinite value                     lost
    RUNNING, WAITING                             pending

A study of ours is one whose trials carry `origin`, or `interrupted` where it did not come to
that. No model, no randomness and no clock here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.values import Configuration

Array = NDArray[np.float64]
Reading = Literal["observed", "lost", "stopped", "interrupted", "pending"]

PROPOSAL = "sampler:proposal"
"""User attribute of a trial in which its sampler keeps what it proposed, why, and what it expects."""


class Place(Protocol):
    """What gives a configuration its vector: candidates, or the axes of a cube."""

    @property
    def names(self) -> frozenset[str]:
        """Knobs that make a configuration."""

    @property
    def width(self) -> int:
        """Entries d of a vector."""

    def vector_of(self, configuration: Mapping[str, Any], /) -> Array | None:
        """Vector (d,) of these values, None where they have no place."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What the observed launches tell beside the objective: of one limit, or of a second objective."""

    values: Array  # (n,) on the log scale; NaN where not known
    errors: Array  # (n,) standard error of each within its launch; NaN where not known


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Observed:
    """What one trial tells that was measured."""

    configuration: Configuration
    vector: Array  # (d,)
    value: float
    told: Mapping[str, Any]
    """The attributes that the tuner has written with it."""

    def number(self, name: str) -> float:
        """An attribute that is a number; NaN where it is not told."""
        return float(self.told.get(name, math.nan))

    @property
    def started_at(self) -> float:
        """Unix time of the launch; NaN where it is not told."""
        return float(self.told.get("facts", {}).get("started_at", math.nan))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Columns over the trials that can be placed: n observed, k lost, p pending."""

    configurations: tuple[Configuration, ...]  # (n,) of observed trials, repeats included
    vectors: Array  # (n, d)
    targets: Array  # (n,) minimised
    errors: Array  # (n,) standard error of each within its launch, on the log scale; NaN where not known
    headroom: Array  # (n,) logarithm of peak memory over limit; NaN where not known
    at_s: Array  # (n,) Unix time of each launch; NaN where not known
    efforts: Array  # (n,) logarithm of the CPU time of a request of each; NaN where not known
    scale: Literal["log", "raw"]
    """Scale of the targets."""
    scale_reason: str
    """Why the scale is raw; empty when it is log."""
    sign: float
    """1 when the study minimises, -1 when it maximises."""
    lost_configurations: tuple[Configuration, ...]  # (k,)
    lost_vectors: Array  # (k, d)
    killed_vectors: Array  # those of the lost ones that ran out of memory
    pending_vectors: Array  # (p, d)
    seen: frozenset[Configuration]
    """Every configuration that was proposed, measured or is waiting, except interrupted ones."""
    earlier: int
    """Trials before this one, except waiting and interrupted ones."""
    hyperparameters: tuple[float, ...]
    """Those of the last model of this study, as its proposal kept them; empty where there is none."""
    slacks: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """By limit: how far each observed launch lies beyond it."""
    second: Column | None = None
    """Logarithms of a second objective, minimised; None in a study of one."""

    @property
    def is_blank(self) -> bool:
        """Whether nothing has been learnt: no trial has ended in a way that teaches."""
        return not len(self.targets) and not len(self.lost_vectors)

    def value_of(self, target: float) -> float:
        """The objective in the study's own unit and direction; the median where the scale is log."""
        if self.scale == "raw":
            return self.sign * target
        return math.exp(self.sign * target)


def read(trial: FrozenTrial) -> Reading:
    """What a trial says; the table is at the top of this file."""
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
    """The values of a trial: what ran, else what was suggested, else what is going to be."""
    stated = trial.user_attrs.get("configuration")
    proposed = trial.user_attrs.get(PROPOSAL, {}).get("configuration", {})
    fixed = trial.system_attrs.get("fixed_params", {}) if not trial.state.is_finished() else {}
    return {**proposed, **fixed, **trial.params, **(stated or {})}


def shared_distributions(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Parameters that every ended trial has, with equal distributions.

    Trials whose objective raised may lack parameters, so they count only when there are no others.
    """
    ended = [trial for trial in trials if trial.state.is_finished() and trial.distributions]
    whole = [trial for trial in ended if trial.state is not TrialState.FAIL] or ended
    if not whole:
        return {}
    shared = dict(whole[-1].distributions)
    for trial in whole:
        shared = {
            name: dist for name, dist in shared.items() if trial.distributions.get(name) == dist
        }
    return dict(sorted(shared.items()))


def gather(
    trials: Iterable[FrozenTrial],
    place: Place,
    *,
    number: int | None,
    maximise: bool,
    with_missed: bool = False,
) -> History:
    """Read a study's trials.

    Args:
        trials: all trials of the study; that of `number` itself is left out.
        place: gives a configuration its vector; trials that have no place are only counted.
        number: the trial to propose for, None to read all of them.
        maximise: direction of the study.
        with_missed: whether launches beyond a limit count as observed, to be told apart by their slacks.
    """
    observed: list[_Observed] = []
    killed: list[Array] = []
    lost: list[tuple[Configuration, Array]] = []
    pending: list[Array] = []
    seen: set[Configuration] = set()
    earlier, hyperparameters = 0, ()
    for trial in trials:
        reading = read(trial)
        if trial.number == number or reading == "interrupted":
            continue
        earlier += (
            number is None or trial.number < number
        ) and trial.state is not TrialState.WAITING
        hyperparameters = (
            trial.user_attrs.get(PROPOSAL, {}).get("hyperparameters") or hyperparameters
        )
        values = parameters_of(trial)
        vector = place.vector_of(values)
        if vector is None:
            continue
        configuration = Configuration({name: values[name] for name in place.names})
        seen.add(configuration)
        value = trial.value if reading == "observed" else None
        if with_missed and value is None:
            value = _missed(trial)
        if value is not None:
            observed.append(
                _Observed(
                    configuration=configuration, vector=vector, value=value, told=trial.user_attrs
                )
            )
        elif reading == "lost":
            lost.append((configuration, vector))
            if trial.user_attrs.get("outcome", {}).get("cause") == "oom":
                killed.append(vector)
        elif reading == "pending":
            pending.append(vector)
    sign = -1.0 if maximise else 1.0
    targets, reason = to_targets(_floats(one.value for one in observed), sign)
    return History(
        configurations=tuple(one.configuration for one in observed),
        vectors=_rows((one.vector for one in observed), place.width),
        targets=targets,
        errors=_floats(one.number("error") for one in observed),
        headroom=_floats(one.number("headroom") for one in observed),
        at_s=_floats(one.started_at for one in observed),
        efforts=_floats(one.number("effort") for one in observed),
        scale="raw" if reason else "log",
        scale_reason=reason,
        sign=sign,
        lost_configurations=tuple(configuration for configuration, _ in lost),
        lost_vectors=_rows((vector for _, vector in lost), place.width),
        killed_vectors=_rows(killed, place.width),
        pending_vectors=_rows(pending, place.width),
        seen=frozenset(seen),
        earlier=earlier,
        hyperparameters=tuple(hyperparameters),
        slacks=_columns([one.told.get("slacks", {}) for one in observed]),
        second=_columns(
            [{"second": one.told["second"]} if one.told.get("second") else {} for one in observed]
        ).get("second"),
    )


def _floats(values: Iterable[float]) -> Array:
    return np.array(list(values), dtype=float)


def _rows(vectors: Iterable[Array], width: int) -> Array:
    return np.array(list(vectors), dtype=float).reshape(-1, width)


def _missed(trial: FrozenTrial) -> float | None:
    """The objective of a launch that was measured and lies beyond a limit; None of any other."""
    value = trial.user_attrs.get("value")
    is_told = trial.state is TrialState.PRUNED and value is not None and math.isfinite(value)
    return float(value) if is_told and value is not None else None


def _columns(rows: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, Column]:
    """Slacks of launches by limit."""
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
    """Objectives (n,) as targets to minimise, and the reason where they are not logarithms."""
    if bool(np.all(values > 0)):
        return sign * np.log(values), ""
    return sign * values, f"{int(np.sum(values <= 0))} of {len(values)} objectives are not positive"
