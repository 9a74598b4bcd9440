"""Policy `per-user`: a linear combination of all models' scores, learned online for each user.

As in Velox (Crankshaw et al., CIDR 2015, section 4), models are shared features, a user's weights
are fitted to feedback by ridge regression, and new users start from the shared weights:

    minimise  sum over feedback (y - w.x)^2 + ridge |w - prior|^2    over w >= 0

For classes, there is one row per class: x has each model's probability, and y is 1 for the right
class, otherwise 0. For numbers, in units of `task.scale`, x has each model's number and a 1 for the
user's offset.
Non-negative weights fit stacked predictors best (Breiman 1996, "Stacked regressions") and act as
votes; the offset is unconstrained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from serving.selection.model_output import (
    ModelOutput,
    Number,
    Scores,
    TrueLabel,
    require,
    top_class,
)
from serving.selection.policies.cascade import UNSEEN, Cascade, EnsembleErrors
from serving.selection.policies.error_counts import NEWCOMER_OBSERVATIONS, ErrorCounts, keep_of
from serving.selection.policies.non_negative import Array, not_negative
from serving.selection.policy import Choice, Combined, Decision

Vector = tuple[float, ...]

_MAX_SCALES = 1e5
"""Limit on numbers in units of `task.scale`, so that squares stay finite."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PerUserState:
    """Sums over one user's feedback, and the resulting weights.

    d is the number of models, plus one for the offset (last) if the models predict numbers.
    """

    tallies: ErrorCounts
    together: EnsembleErrors
    prior: Vector  # (d,)
    gram: tuple[Vector, ...]  # (d, d), sum of x x'
    moments: Vector  # (d,), sum of x y
    weights: Vector  # (d,)

    def __post_init__(self) -> None:
        d = len(self.prior)
        if (
            not len(self.models) <= d <= len(self.models) + 1
            or not len(self.gram) == len(self.moments) == len(self.weights) == d
            or any(len(row) != d for row in self.gram)
        ):
            raise ValueError(f"sizes do not fit {len(self.models)} models")
        values = (*self.prior, *self.moments, *self.weights, *(x for row in self.gram for x in row))
        if not np.isfinite(values).all():
            raise ValueError("a sum or a weight is not finite")

    @property
    def models(self) -> tuple[str, ...]:
        """The linked models."""
        return self.tallies.models


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PerUser(Cascade[PerUserState]):
    """Policy based on ridge regression over the models' scores."""

    name: ClassVar[str] = "per-user"

    ridge: float = 10.0
    """Strength of the prior: about the number of feedback messages with the same weight."""

    def __post_init__(self) -> None:
        Cascade.__post_init__(self)
        expected = "0.001 to 1e6; without it the weights of models that always agree are undefined"
        require(1e-3 <= self.ridge <= 1e6, "ridge", self.ridge, expected)

    def initial(self, models: Sequence[str]) -> PerUserState:
        """Return equal weights for all models."""
        offset = (0.0,) if self.task.kind == "number" else ()
        return self._empty(
            ErrorCounts.none(models), (1.0 / max(1, len(models)),) * len(models) + offset
        )

    def parse_state(self, data: Mapping[str, Any]) -> PerUserState:
        """Parse the fields of a state, which must be for the same kind of task."""
        state = PerUserState(
            tallies=ErrorCounts.from_json(data["tallies"]),
            together=EnsembleErrors.from_json(data["together"]),
            prior=_vector(data["prior"]),
            gram=tuple(_vector(row) for row in data["gram"]),
            moments=_vector(data["moments"]),
            weights=_vector(data["weights"]),
        )
        if len(state.prior) != len(state.models) + (self.task.kind == "number"):
            raise ValueError(f"the state is not one of a task of kind {self.task.kind}")
        return state

    def relink(self, state: PerUserState, models: Sequence[str]) -> PerUserState:
        """Return the state for other models; the prior's sum stays the same."""
        if tuple(models) == state.models:
            return state
        count = len(models)
        places = {model: place for place, model in enumerate(state.models)}
        old = state.prior[: len(places)]
        kept = [old[places[model]] for model in models if model in places]
        mean = sum(kept) / len(kept) if kept else 1.0
        prior = np.array([old[places[m]] if m in places else mean for m in models], dtype=float)
        if prior.sum() > 0 and sum(old) > 0:
            prior *= sum(old) / prior.sum()
        elif count:
            prior[:] = 1.0 / count

        # Rows of the new sums that have an old row, including the offset's.
        new = [place for place, model in enumerate(models) if model in places]
        before = [places[models[place]] for place in new]
        if len(state.prior) > len(places):
            prior = np.append(prior, state.prior[-1])
            new.append(count)
            before.append(len(places))
        gram, moments = np.zeros((len(prior), len(prior))), np.zeros(len(prior))
        d = len(state.prior)
        gram[np.ix_(new, new)] = np.reshape(state.gram, (d, d))[np.ix_(before, before)]
        moments[new] = np.array(state.moments)[before]
        return self._fit(
            state.tallies.relink(models), UNSEEN, prior=prior, gram=gram, moments=moments
        )

    def initial_for_user(self, shared: PerUserState) -> PerUserState:
        """Return a state with the shared weights as its prior."""
        return self._empty(shared.tallies.at_most(NEWCOMER_OBSERVATIONS), shared.weights)

    def weights(self, state: PerUserState) -> Mapping[str, float]:
        """Return the weights as shares, without the offset."""
        own = state.weights[: len(state.models)]
        total = sum(own)
        if total <= 0:
            return {model: 1.0 / len(own) for model in state.models}
        return {model: weight / total for model, weight in zip(state.models, own, strict=True)}

    def combine(
        self, state: PerUserState, choice: Choice, responses: Mapping[str, ModelOutput]
    ) -> Combined:
        """Combine outputs; the weights of missing models go to the others."""
        found = self.combine_by(state, choice, responses, "scores")
        if self.task.kind == "number" and found.output is not None:
            there = [model for model in choice.models if model in responses]
            return dataclasses.replace(
                found, output=self._number(state, there, responses), used=tuple(there)
            )
        return found

    def observe(self, state: PerUserState, decision: Decision, truth: TrueLabel) -> PerUserState:
        """Refit the weights; a missing output gets the others' mean and lowers its model's weight.

        Other models' weights stay, so a dead model does not lower the confidence.
        """
        keep = keep_of(self.memory)
        tallies, together = self.count_errors(state, decision, truth)
        there = [model in decision.answers for model in state.models]
        # A row without a model that was not queried carries no information on weights.
        is_row = any(there) and set(state.models) <= set(decision.choice.models)
        if not is_row:
            return dataclasses.replace(state, tallies=tallies, together=together)
        x, y = self._rows([decision.answers.get(model) for model in state.models], truth)
        gram = x @ x.T
        if not all(there):
            missing = np.flatnonzero(~np.array(there))
            gram[missing, missing] += np.square(x[missing]).sum(axis=1)
        return self._fit(
            tallies,
            together,
            start=state.weights,
            prior=np.array(state.prior),
            gram=keep * np.array(state.gram) + gram,
            moments=keep * np.array(state.moments) + x @ y,
        )

    def _rows(
        self, responses: Sequence[ModelOutput | None], truth: TrueLabel
    ) -> tuple[Array, Array]:
        """Return rows x (d, n) and goals y (n,) for n classes, or with n = 1 for a number."""
        if isinstance(truth, float):
            values = [
                [self._to_scales(a.value)] if isinstance(a, Number) else None for a in responses
            ]
            return np.append(_fill_missing(values), [[1.0]], axis=0), np.array(
                [self._to_scales(truth)]
            )
        spread = [None if answer is None else _probabilities(answer) for answer in responses]
        labels = sorted({label for each in spread if each for label in each} | {truth})
        x = _fill_missing(
            [
                None if each is None else [each.get(label, 0.0) for label in labels]
                for each in spread
            ]
        )
        return x, np.array([float(label == truth) for label in labels])

    def _number(
        self, state: PerUserState, there: Sequence[str], responses: Mapping[str, ModelOutput]
    ) -> float:
        own = dict(zip(state.models, state.weights, strict=False))
        total = sum(own.values())
        values = {
            model: self._to_scales(answer.value)
            for model in there
            if isinstance(answer := responses[model], Number)
        }
        present = sum(own.get(model, 0.0) for model in values)
        if present > 0:
            mean = sum(own.get(model, 0.0) * value for model, value in values.items()) / present
        else:
            mean = sum(values.values()) / len(values)
            total = total or 1.0
        return self.task.scale * (total * mean + state.weights[-1])

    def _to_scales(self, value: float) -> float:
        return min(_MAX_SCALES, max(-_MAX_SCALES, value / self.task.scale))

    def _empty(self, tallies: ErrorCounts, prior: Vector) -> PerUserState:
        d = len(prior)
        return PerUserState(
            tallies=tallies,
            together=UNSEEN,
            prior=prior,
            gram=((0.0,) * d,) * d,
            moments=(0.0,) * d,
            weights=prior,
        )

    def _fit(
        self,
        tallies: ErrorCounts,
        together: EnsembleErrors,
        *,
        start: Vector = (),
        prior: Array,
        gram: Array,
        moments: Array,
    ) -> PerUserState:
        weights = not_negative(
            gram + self.ridge * np.eye(len(prior)),
            moments + self.ridge * prior,
            count=len(tallies.models),
            start=start,
        )
        return PerUserState(
            tallies=tallies,
            together=together,
            prior=tuple(prior.tolist()),
            gram=tuple(tuple(row) for row in gram.tolist()),
            moments=tuple(moments.tolist()),
            weights=tuple(weights.tolist()),
        )


def _fill_missing(rows: Sequence[Sequence[float] | None]) -> Array:
    there = [row for row in rows if row is not None]
    mean = [sum(column) / len(there) for column in zip(*there, strict=True)]
    return np.array([mean if row is None else row for row in rows], dtype=np.float64)


def _probabilities(response: ModelOutput) -> Mapping[str, float]:
    assert not isinstance(response, Number)
    if isinstance(response, Scores):
        return dict(zip(response.labels, response.probabilities, strict=True))
    return {top_class(response): 1.0}


def _vector(values: Sequence[float]) -> Vector:
    return tuple(float(value) for value in values)
