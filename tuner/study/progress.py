"""Progress of a study on standard error: the plan, then a line per evaluation.

There is no live display, since redrawing it would disturb measurements.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping

import rich.console

from tuner.metrics import objective as objectives
from tuner.report import console_text, formatting
from tuner.store.event_log import EventLog
from tuner.values.configuration import Value
from tuner.values.measurement import Measurement
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import Outcome, Trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Output and signal check of a command."""

    console: rich.console.Console
    log: EventLog
    check: Callable[[], None]
    """Function that raises KeyboardInterrupt after a signal.

    Python swallows that exception in a destructor, so long work calls this.
    """

    def say(self, text: str, *, style: str = "") -> None:
        """Print a sentence or row to standard error."""
        console_text.write_line(self.console, text, style=style)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """Plan of a study."""

    name: str
    model: str
    load: str
    """Concurrency and client batch in words."""
    sampler: str
    cells: int
    trials: int
    initial: int
    done: int
    """Number of trials that earlier commands ran."""
    pairs: int
    expected_s: float
    """Expected time from now on if there is no time limit."""
    max_time_s: float
    """Time left until the limit."""
    fits: int
    """Number of trials that fit into the time limit, including finished ones."""


class Progress:
    """Printer of a study's progress."""

    def __init__(
        self,
        console: rich.console.Console,
        *,
        default: Mapping[str, Value],
        objective: str,
        second: str | None = None,
    ) -> None:
        self._console = console
        self._default = default
        self._objective = objectives.find_objective(objective)
        self._second = None if second is None else objectives.find_objective(second)

    def plan(self, plan: StudyPlan, *, now: dt.datetime) -> None:
        """Print the plan."""
        expected_s = min(plan.expected_s, plan.max_time_s)
        budget = (
            f"{formatting.plural(plan.trials, 'evaluation')}: the default, "
            f"{plan.initial - 1} to begin with, {plan.trials - plan.initial} guided or checks"
        )
        if plan.done:
            budget += f"; {plan.done} of them done"
        self.say(
            f"{plan.name}: {plan.model} at {plan.load}, sampler {plan.sampler}",
            style="bold",
        )
        self.say(
            f"{formatting.plural(plan.cells, 'configuration')} that differ; {budget}; "
            f"then default and best at most {plan.pairs} times each in turn"
        )
        self.print_duration(
            expected_s, now=now, more=f" (limit {formatting.duration(plan.max_time_s)})"
        )
        if plan.fits < plan.trials:
            room = f"about {plan.fits} of {plan.trials} evaluations"
            if plan.fits <= 1:
                room = "the default only, so nothing is searched"
            self.say(
                f"the longest time leaves time for {room}; all would take about "
                f"{formatting.duration(plan.expected_s)} (--max-time)",
                style="yellow",
            )

    def print_duration(self, seconds: float, *, now: dt.datetime, more: str = "") -> None:
        """Print the expected duration and end."""
        end = now + dt.timedelta(seconds=seconds)
        self.say(f"takes about {formatting.duration(seconds)}, until about {end:%H:%M:%S}{more}")

    def trial(self, trial: Trial, *, best: Trial | None, left_s: float, who: str = "") -> None:
        """Print a trial; if several searches take turns, `who` names this one."""
        tail = "no best yet"
        if best is not None and best.measurement is not None:
            tail = f"best {self._value(best.measurement)}"
        style = "green" if trial == best else "" if trial.measurement is not None else "yellow"
        head = f"{who} {trial.number:3d}" if who else f"{trial.number:3d}"
        where = f" | on {trial.node}" if trial.node else ""
        self.say(
            f"{head} {trial.origin:<9} {self.result(trial.outcome, trial.measurement)} | "
            f"{self.differences(trial.configuration)} | {tail} | {formatting.duration(left_s)} left{where}",
            style=style,
        )

    def verification(self, number: int, of: int, last: RoundEvaluation, *, left_s: float) -> None:
        """Print a round evaluation of the verification."""
        left = f" | {formatting.duration(left_s)} left at most" if left_s > 0 else ""
        found = self.result(last.outcome, last.measurement)
        self.say(f"verify {number}/{of} {last.role:<7} {found}{left}")

    def print_open_round(self, last: RoundEvaluation, rate_per_s: float) -> None:
        """Print a round evaluation of the open loop."""
        outcome, measurement = last.outcome, last.measurement
        found = f"{outcome.status} ({outcome.cause}): {outcome.reason}"
        if measurement is not None:
            p99 = f"p99 {formatting.number(measurement.p99_ms)} ms"
            if not measurement.has_p99:
                p99 = f"no p99 from {measurement.effective:,.0f} effective requests"
            found = f"mean {formatting.number(measurement.mean_ms)} ms, {p99}"
        self.say(f"open loop at {formatting.number(rate_per_s)} requests/s {last.role:<7} {found}")

    def print_recommendation(self, best: Mapping[str, Value], luckier: Trial) -> None:
        """Explain why the recommendation is not the trial with the best single measurement."""
        self.say(
            f"best by all measurements: {self.differences(best)}; the best single one, "
            f"trial {luckier.number}, is partly luck"
        )

    def result(self, outcome: Outcome, measurement: Measurement | None) -> str:
        """Describe a result briefly."""
        if measurement is None or outcome.status != "ok":
            return f"{outcome.status} ({outcome.cause}): {outcome.reason}"
        if measurement.ended_early:
            after = f"ended after {measurement.seconds:.1f} s: cannot beat the best"
            return f"{self._value(measurement)} ({after})"
        ends = self._objective.interval(measurement)
        found = f"{self._value(measurement)} ({formatting.interval(ends)})"
        if self._second is not None:
            beside = self._second.value(measurement)
            found = f"{found}, {formatting.quantity(beside, self._second.unit)}"
        return f"{found}, disturbed, and fully or partly repeated" if measurement.repeats else found

    def _value(self, measurement: Measurement) -> str:
        return f"{formatting.number(self._objective.value(measurement))} {self._objective.unit}"

    def say(self, text: str, *, style: str = "") -> None:
        """Print a sentence or row."""
        console_text.write_line(self._console, text, style=style)

    def differences(self, configuration: Mapping[str, Value]) -> str:
        """List a configuration's differences from the default, with short names."""
        return differences(configuration, self._default)


def differences(configuration: Mapping[str, Value], default: Mapping[str, Value]) -> str:
    """List a configuration's differences from the default, with short names."""
    short = short_names(default)
    changed = [
        f"{short.get(name, name)}={formatting.knob_value(value)}"
        for name, value in configuration.items()
        if default.get(name) != value
    ]
    return " ".join(changed) or "the default"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Map each knob to the last word of its name, where that is unique."""
    known = list(names)
    counts = collections.Counter(name.rpartition(".")[2] for name in known)
    return {name: last if counts[last := name.rpartition(".")[2]] == 1 else name for name in known}
