"""Result of a trial: what its evaluation says about objectives and constraints. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics

from scipy import special

from tuner.evaluation.evaluation import Evaluation
from tuner.measurement.blocks import MAX_BATCHES
from tuner.measurement.host import log_cpu_per_request
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import objective as objectives
from tuner.store.trial_rows import TrialResult
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement

MEMORY_LIMITS = ("replica.memory_mb", "engine.memory_mb")
OF_MOMENTS = frozenset({"mean", "p50", "throughput", "time-per-item"})
"""Objectives shown to be as sensitive to drift as CPU time is, in closed loops."""
OF_RANKS = frozenset({"p50", "p95", "p99"})
"""Objectives whose intervals come from order statistics; the others use blocks."""
MIN_BLOCKS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judge of the evaluations in a search."""

    needs: EvaluationRequirements
    objective: objectives.Objective
    second: objectives.Objective | None

    def result(self, evaluation: Evaluation, wall_s: float) -> TrialResult:
        """Return the result to save, including the measurement if it is still informative."""
        outcome, measurement = evaluation.outcome, evaluation.measurement
        if measurement is not None:
            outcome = self.needs.outcome(measurement)
            # The constraint's p99 is missing; the rest is useful.
            teaches = outcome.cause in {None, "constraint", "short"}
            if not (teaches and self.needs.tells_objectives(measurement)):
                measurement = None
        found = TrialResult(
            outcome=outcome,
            measurement=None,
            objective=None,
            startup_s=evaluation.startup_s,
            overhead_s=wall_s - evaluation.loaded_s,
            started_at=evaluation.started_at,
            node=evaluation.node,
            slacks=self._slacks(measurement),
        )
        if measurement is None:
            return found
        value = self.objective.to_minimise(measurement)
        if outcome.status == "ok":
            found = dataclasses.replace(found, measurement=measurement, objective=value)
        else:
            found = dataclasses.replace(found, missed=measurement, value=value)
        return dataclasses.replace(
            found,
            second=self._second(measurement),
            error=relative_standard_error(self.objective, measurement),
            headroom=_headroom(evaluation.configuration, measurement),
            effort=self._effort(measurement),
        )

    def _effort(self, measurement: Measurement) -> float | None:
        if self.objective.name not in OF_MOMENTS or measurement.rate_per_s is not None:
            return None
        return log_cpu_per_request(measurement)

    def _second(self, measurement: Measurement) -> tuple[float, float | None] | None:
        if self.second is None:
            return None
        value = math.log(self.second.to_minimise(measurement))
        return value, relative_standard_error(self.second, measurement)

    def _slacks(
        self, measurement: Measurement | None
    ) -> dict[str, tuple[float | None, float | None]]:
        if measurement is None:
            return {limit.text: (None, None) for limit in self.needs.limits}
        found: dict[str, tuple[float | None, float | None]] = {}
        for limit in self.needs.limits:
            same = limit.of.objective
            error = None
            if same is not None:
                error = relative_standard_error(objectives.find_objective(same), measurement)
            slack = limit.log_excess(limit.of.value(measurement))
            found[limit.text] = (None if math.isnan(slack) else slack, error)
        return found


def relative_standard_error(
    objective: objectives.Objective, measurement: Measurement
) -> float | None:
    """Return the standard error of an objective's logarithm, estimated from one evaluation.

    It is half the interval's log width divided by its quantile, or None if an end is unknown. Tails
    vary more between blocks than order statistics tell, which presume independent requests.
    """
    if objective.name in OF_RANKS:
        return _error_of_blocks(objective.name, measurement)
    ends = objective.interval(measurement)
    if not ends.low or not ends.high or ends.low <= 0:
        return None
    count = len(measurement.blocks)
    batches = count // math.ceil(count / MAX_BATCHES)
    quantile = float(special.stdtrit(batches - 1, 0.975))
    return math.log(ends.high / ends.low) / (2 * quantile)


def _error_of_blocks(name: str, measurement: Measurement) -> float | None:
    values_ms = [one.p50_ms if name == "p50" else one.p99_ms for one in measurement.blocks]
    if len(values_ms) < MIN_BLOCKS or min(values_ms) <= 0:
        return None
    return statistics.stdev(map(math.log, values_ms)) / math.sqrt(len(values_ms))


def _headroom(configuration: Configuration, measurement: Measurement) -> float | None:
    limits = [configuration.get(knob) for knob in MEMORY_LIMITS]
    limit_mb = next((float(limit) for limit in limits if isinstance(limit, int | float)), None)
    peak_mb = measurement.noise.peak_memory_mb
    return math.log(peak_mb / limit_mb) if peak_mb and limit_mb else None
