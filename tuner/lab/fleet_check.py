"""Check of machines before trials run on them: what each can do, whether they are alike, and at the same speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import gmean

from tuner.errors import TunerError, UsageError
from tuner.lab import doctor
from tuner.lab.doctor import Finding
from tuner.measurement.comparison import ratio_interval
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import targets
from tuner.study.nodes import fleet, opening
from tuner.study.nodes.measuring_node import MeasuringNode, facts
from tuner.study.progress import Terminal
from tuner.values.configuration import Configuration
from tuner.values.interval import Interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNode:
    """One machine."""

    name: str
    cores: int
    memory_mb: int
    cpu: str
    findings: tuple[Finding, ...]
    means_ms: tuple[float, ...]
    """Mean latencies of the default configuration, measured on all machines at once."""
    ratio: float | None
    """Mean latency over the geometric mean of all machines; None if it was not measured."""
    interval: Interval | None

    @property
    def shortcomings(self) -> tuple[Finding, ...]:
        """Findings that are not as they should be."""
        return tuple(one for one in self.findings if one.state != "ok")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """Several machines."""

    nodes: tuple[CheckedNode, ...]
    difference: str | None
    """What tells two of them, or one and this machine, apart, so that trials on them cannot be
    compared; None: they are alike."""

    @property
    def is_wrong(self) -> bool:
        """Whether trials should not run on them."""
        findings = (one for node in self.nodes for one in node.findings)
        return self.difference is not None or any(one.state == "wrong" for one in findings)


class ExaminedNode(MeasuringNode):
    """Machine that says what `tune doctor` finds on it."""

    def examine(self) -> list[Finding]:
        """Run the quick checks."""
        return list(doctor.findings())


def check(
    workers: str, target: TargetSettings, *, evaluations: int, terminal: Terminal
) -> FleetCheck:
    """Check machines, and evaluate the default configuration on all of them at once.

    Args:
        workers: which, as for a study's `--workers`.
        target: the model and its load.
        evaluations: rounds of evaluations; 0 for none.
        terminal: where progress is told.

    Raises:
        UsageError: the machines cannot be had, a file of the model cannot be read, or the model
            does not start on one.
        TunerError: the model cannot be measured on one.
    """
    settings = StudySettings(
        target=target, search=SearchSettings(workers=workers), measurement=MeasurementSettings()
    )
    found = targets.find_target(target)
    here = facts(target, found)
    with opening.open_fleet(settings, found, kind=ExaminedNode) as nodes:
        terminal.say(f"{len(nodes)} machines: {', '.join(node.name for node in nodes)}")
        default = Configuration({})
        with opening.thread_for_each(nodes) as threads:
            told = dict(
                zip(
                    (node.name for node in nodes),
                    threads.map(lambda node: opening.open_node(node, default), nodes),
                    strict=True,
                )
            )
            findings = [node.ask("examine") for node in nodes]
            rounds = []
            for number in range(evaluations):
                rounds.append(list(threads.map(lambda node: _mean_ms(node, default), nodes)))
                terminal.say(f"round {1 + number} of {evaluations} on all machines")
    return FleetCheck(
        nodes=tuple(
            _checked(name, one, found, rounds, place)
            for place, ((name, one), found) in enumerate(zip(told.items(), findings, strict=True))
        ),
        difference=_difference(told, here),
    )


def _mean_ms(node: fleet.StudyNode, configuration: Configuration) -> float:
    evaluation = node.evaluate(configuration)
    if evaluation.measurement is None:
        reason = evaluation.outcome.reason
        raise TunerError(f"{node.name} cannot measure the default configuration: {reason}")
    return evaluation.measurement.mean_ms


def _checked(
    name: str,
    facts: Mapping[str, Any],
    findings: Sequence[Finding],
    rounds: Sequence[Sequence[float]],
    place: int,
) -> CheckedNode:
    means_ms = tuple(each[place] for each in rounds)
    ratio = interval = None
    if rounds:
        ratio, interval = ratio_interval(means_ms, [float(gmean(each)) for each in rounds])
    host = facts["host"]
    return CheckedNode(
        name=name,
        cores=host["cores"],
        memory_mb=host["memory_mb"],
        cpu=host["cpu"],
        findings=tuple(findings),
        means_ms=means_ms,
        ratio=ratio,
        interval=interval,
    )


def _difference(told: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any]) -> str | None:
    """Return the first difference; no engine ran here, so this machine has fewer facts to compare."""
    known = {name: {key: facts[key] for key in here} for name, facts in told.items()}
    try:
        fleet.check_alike(told)
        fleet.check_alike({"this machine": here, **known})
    except UsageError as error:
        return str(error)
    return None
