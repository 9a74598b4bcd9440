"""What a person sees of a running study on standard error: the plan, then a line per launch.

In: facts of the study as values. Out: lines of a rich console, which drops colours where nobody
sees them, folded for a terminal's width. No live display: a spinner that redraws ten times a second
would be measured with the engine. Decides nothing and keeps only what lines need.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping

import rich.console

from tuner import objective as objectives
from tuner.report import lines, wording
from tuner.store.event_log import EventLog
from tuner.values import Measurement, Outcome, Trial, Value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where a command speaks and logs, and how it learns of a signal."""

    console: rich.console.Console
    log: EventLog
    check: Callable[[], None]
    """Raises KeyboardInterrupt after a signal. A signal raises by itself, but Python swallows an exception that
    comes up inside a destructor; so whoever works for long checks now and then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study is going to do."""

    name: str
    model: str
    load: str
    """Concurrency and client batch, in words."""
    sampler: str
    cells: int
    trials: int
    initial: int
    done: int
    """Trials that an earlier command measured."""
    pairs: int
    expected_s: float
    """From now to the end, as far as can be told, if there were no longest time."""
    max_time_s: float
    """What is left of the longest time."""
    fits: int
    """Trials that can be expected to be launched in it, those that are done included."""


class Progress:
    """Lines about one study."""

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
        self._short = short_names(default)
        self._objective = objectives.named(objective)
        self._second = None if second is None else objectives.named(second)

    def plan(self, plan: Plan, *, now: dt.datetime) -> None:
        """The plan and when it should end."""
        expected_s = min(plan.expected_s, plan.max_time_s)
        budget = (
            f"{wording.plural(plan.trials, 'launch')}: the default, {plan.initial - 1} spread, "
            f"{plan.trials - plan.initial} guided"
        )
        if plan.done:
            budget += f"; {plan.done} of them done"
        self.say(
            f"{plan.name}: {plan.model} at {plan.load}, sampler {plan.sampler}",
            style="bold",
        )
        self.say(
            f"{wording.plural(plan.cells, 'configuration')} that differ; {budget}; "
            f"then default and best at most {plan.pairs} times each in turn"
        )
        self.expected(expected_s, now=now, more=f" (limit {wording.duration(plan.max_time_s)})")
        if plan.fits < plan.trials:
            room = f"about {plan.fits} of {plan.trials} launches"
            if plan.fits <= 1:
                room = "the default only, so that nothing is searched"
            self.say(
                f"the longest time leaves room for {room}; all would take about "
                f"{wording.duration(plan.expected_s)} (--max-time)",
                style="yellow",
            )

    def expected(self, seconds: float, *, now: dt.datetime, more: str = "") -> None:
        """How long it takes and when it should end."""
        end = now + dt.timedelta(seconds=seconds)
        self.say(f"takes about {wording.duration(seconds)}, until about {end:%H:%M:%S}{more}")

    def trial(self, trial: Trial, *, best: Trial | None, left_s: float, who: str = "") -> None:
        """One launch of a search; `who` names the search where there are several."""
        tail = "no best yet"
        if best is not None and best.measurement is not None:
            tail = f"best {self._value(best.measurement)}"
        style = "green" if trial == best else "" if trial.measurement is not None else "yellow"
        head = f"{who} {trial.number:3d}" if who else f"{trial.number:3d}"
        self.say(
            f"{head} {trial.origin:<9} {self.result(trial.outcome, trial.measurement)} | "
            f"{self.differences(trial.configuration)} | {tail} | {wording.duration(left_s)} left",
            style=style,
        )

    def verification(
        self,
        number: int,
        of: int,
        role: str,
        outcome: Outcome,
        measurement: Measurement | None,
        *,
        left_s: float,
    ) -> None:
        """One fresh start of the verification."""
        left = f" | {wording.duration(left_s)} left" if left_s else ""
        self.say(f"verify {number}/{of} {role:<7} {self.result(outcome, measurement)}{left}")

    def opened(
        self, role: str, rate_per_s: float, outcome: Outcome, measurement: Measurement | None
    ) -> None:
        """One fresh start in an open loop."""
        found = f"{outcome.status} ({outcome.cause}): {outcome.reason}"
        if measurement is not None:
            p99 = f"p99 {wording.number(measurement.p99_ms)} ms"
            if not measurement.has_p99:
                p99 = f"no p99 from {measurement.effective:,.0f} effective requests"
            found = f"mean {wording.number(measurement.mean_ms)} ms, {p99}"
        self.say(f"open loop at {wording.number(rate_per_s)} requests/s {role:<7} {found}")

    def recommended(self, best: Mapping[str, Value], luckier: Trial) -> None:
        """Why the best configuration is not the one with the best measurement."""
        self.say(
            f"best by all measurements together: {self.differences(best)}; the best single one, "
            f"trial {luckier.number}, is partly luck"
        )

    def result(self, outcome: Outcome, measurement: Measurement | None) -> str:
        """What a launch gave, in a few words."""
        if measurement is None or outcome.status != "ok":
            return f"{outcome.status} ({outcome.cause}): {outcome.reason}"
        if measurement.ended_early:
            after = f"ended after {measurement.seconds:.1f} s: no rival of the best"
            return f"{self._value(measurement)} ({after})"
        ends = self._objective.interval(measurement)
        found = f"{self._value(measurement)} ({wording.interval(ends)})"
        if self._second is not None:
            beside = self._second.value(measurement)
            found = f"{found}, {wording.quantity(beside, self._second.unit)}"
        return (
            f"{found}, disturbed, and measured again or in part" if measurement.repeats else found
        )

    def _value(self, measurement: Measurement) -> str:
        return f"{wording.number(self._objective.value(measurement))} {self._objective.unit}"

    def say(self, text: str, *, style: str = "") -> None:
        """One sentence or one row."""
        lines.say(self._console, text, style=style)

    def differences(self, configuration: Mapping[str, Value]) -> str:
        """Knobs that differ from the default, by their short names."""
        changed = [
            f"{self._short.get(name, name)}={wording.knob_value(value)}"
            for name, value in configuration.items()
            if self._default.get(name) != value
        ]
        return " ".join(changed) or "the default"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Knob -> its last word where that is nobody else's, else the whole name."""
    known = list(names)
    counts = collections.Counter(name.rpartition(".")[2] for name in known)
    return {name: last if counts[last := name.rpartition(".")[2]] == 1 else name for name in known}
