"""A/B comparison under one workload, without a search.

    words -> two arms -> their engines up at once -> rounds -> verdict

An arm is a settings file, study, model, engine or running server. Nothing is written, and every
started engine is stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from serving import zoo
from serving.errors import InvalidSettings, ServingError
from serving.settings import SETTINGS, ServingSettings
from serving.settings.sources import read_file
from serving.system import bounded_yaml
from serving.system.yaml_problem import yaml_problem
from tuner.advice import advise
from tuner.engines.description import OtherEngine, UrlEngine
from tuner.errors import TunerError, UsageError
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, CannotInterleave, InterleavedRounds, SequentialRounds
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.evaluation.outcomes import count_failures
from tuner.launching.command_engine import CommandLauncher
from tuner.launching.engine import EngineInfo, Launcher
from tuner.load_generator.payloads import Payloads
from tuner.measurement import comparison, sequential
from tuner.metrics import objective as objectives
from tuner.report import console_text, formatting
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import rate_in_words
from tuner.store import run_folder
from tuner.study import study_files, targets, verification
from tuner.study.interruption import resumable
from tuner.study.preparation import needs_of
from tuner.study.progress import Terminal
from tuner.values.configuration import Configuration, Value
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.verdict import Verdict

ARMS = ("A", "B")
NO_MODEL = "none"
"""Model name if the command gives none."""
LOAD = ("concurrency", "rate", "arrivals", "client_batch")
SENT = ("payload", "shape", "values")
"""Settings of the workload, only from the command.
Those of inputs may also come from a compared study."""
ASSUMED_SD = 0.05
"""Standard deviation of log ratios before any data, from recorded blocks."""
MAX_ROUNDS = 1000
METRICS = (
    "mean",
    "p50",
    "p95",
    "p99",
    "throughput",
    "time-per-item",
    "consistency",
    "cpu",
    "memory",
)
"""Objectives to compare; others need a price file, a limit, or a device's energy."""
CONNECT_S = 2.0
"""Connection timeout to a running server."""
LOST_ROUNDS = 2
"""Failed rounds in a row after which the comparison is given up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Threshold: by how much B may be worse."""

    objective: str
    share: float
    """0.05 is 5 %."""
    text: str

    @property
    def at(self) -> float:
        """Log ratio of B to A at the threshold."""
        is_minimised = objectives.find_objective(self.objective).is_minimised
        return math.log1p(self.share if is_minimised else -self.share)


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold such as `p99 worse by 5 %`.

    Raises:
        ValueError: another form, or no objective.
    """
    words = text.replace("%", " % ").split()
    if len(words) != 5 or words[1:3] != ["worse", "by"] or words[4] != "%":
        raise ValueError(f"{text!r} is not a threshold, expected for example 'p99 worse by 5 %'")
    try:
        share = float(words[3]) / 100
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if words[0] not in METRICS:
        raise ValueError(f"{text!r}: expected one of the metrics {', '.join(METRICS)}")
    most = 10 if objectives.find_objective(words[0]).is_minimised else 1
    if not 0 < share < most:
        raise ValueError(f"{text!r}: expected more than 0 % and less than {100 * most} %")
    return Threshold(objective=words[0], share=share, text=f"{words[0]} worse by {100 * share:g} %")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AbSpec:
    """Specification of a comparison."""

    words: tuple[str, str]
    """A and B, as given."""
    settings: StudySettings
    """Workload, measurement, time, and default model (or `NO_MODEL`)."""
    limit: Threshold | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AbResult:
    """Result of a comparison."""

    words: tuple[str, str]
    told: tuple[str, str]
    """Full descriptions of A and B."""
    models: tuple[str, str]
    load: str
    verdict: Verdict
    objective: str
    limit: Threshold | None
    decision: str
    """within, worse or undecided; without a threshold, the verdict's outcome."""
    why_in_turn: str | None
    """Why the arms were not interleaved, or None."""
    runs: tuple[str, ...]
    """Arms that already ran and stay unchanged."""
    seconds: float
    repeats: int
    """Slices or phases repeated or dropped for disturbance by neighbours."""
    tallies: Mapping[str, FailureCount]
    """By arm: evaluations, and failures, whose rounds do not count."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AbArm:
    """Arm A or B."""

    told: str
    launcher: Launcher
    configuration: Configuration
    payloads_of: Callable[[EngineInfo], Payloads]
    model: str
    """Name or file; a server's page may have none."""
    is_running: bool = False
    """Whether it already runs and stays unchanged."""


def compare(order: AbSpec, *, terminal: Terminal) -> AbResult:
    """Compare B with A.

    Raises:
        WrongUse: an input is wrong; nothing was measured.
        TunerError: it failed.
        Interrupted: nothing was saved.
    """
    begun_s = time.monotonic()
    settings = order.settings
    sides = _arms(order, terminal)
    load = make_open_loop_plan(settings.target, seed=settings.search.seed, rate_per_s=None)
    with resumable(None), contextlib.ExitStack() as owned:
        bench = owned.enter_context(
            Evaluator(
                model=settings.target.model,
                concurrency=settings.target.in_flight,
                settings=settings.measurement,
                launcher=sides["A"].launcher,
                open_load=load,
            )
        )
        owned.callback(sides["B"].launcher.close)
        source, why = owned.enter_context(_measuring(bench, sides))
        if why is not None:
            console_text.write_line(
                terminal.console, f"evaluated in turn with restarts, not side by side: {why}"
            )
        rounds = _rounds(order, bench, source, terminal, begun_s=begun_s)
    verdict = _verdict(order, rounds)
    return AbResult(
        words=order.words,
        told=(sides["A"].told, sides["B"].told),
        models=(sides["A"].model, sides["B"].model),
        load=_workload_in_words(settings.target),
        verdict=verdict,
        objective=_objective(order),
        limit=order.limit,
        decision=_decision(order, verdict, count_failures(rounds.starts)),
        why_in_turn=why,
        runs=tuple(role for role, side in sides.items() if side.is_running),
        seconds=time.monotonic() - begun_s,
        repeats=sum(one.measurement.repeats for one in rounds.starts if one.measurement),
        tallies=count_failures(rounds.starts),
    )


def _objective(order: AbSpec) -> str:
    return order.limit.objective if order.limit else order.settings.measurement.first


def _rounds(
    order: AbSpec,
    bench: Evaluator,
    source: verification.MeasuresRounds,
    terminal: Terminal,
    *,
    begun_s: float,
) -> verification.Rounds:
    """Evaluate rounds until they suffice or the time is over."""
    settings = order.settings
    name = _objective(order)
    objective = objectives.find_objective(name)
    last_s = time.monotonic()
    rule: sequential.StoppingRule | None = None

    def report(starts: Sequence[RoundEvaluation], _launch: object) -> None:
        terminal.check()
        _check_arms(starts)
        bench.stream = 1 + len(starts) // len(ARMS)
        if len(starts) % 2:
            return
        number, pair = len(starts) // 2, {one.role: one for one in starts[-2:]}
        found = [pair[role].measurement for role in ARMS]
        if None in found:
            lost = [one for one in pair.values() if one.measurement is None]
            told = "; ".join(f"{one.role} failed: {one.outcome.reason}" for one in lost)
            console_text.write_line(terminal.console, f"{number:3d} {told}", style="yellow")
            return
        values = [objective.value(one) for one in found if one is not None]
        left_s = settings.search.max_time_s - (time.monotonic() - begun_s)
        console_text.write_line(
            terminal.console,
            f"{number:3d} A {formatting.quantity(values[0], objective.unit)}, "
            f"B {formatting.quantity(values[1], objective.unit)}: "
            f"x {values[1] / values[0]:.3f} | {formatting.duration(max(0.0, left_s))} left at most",
        )

    def is_enough(rounds: verification.Rounds) -> bool:
        nonlocal rule, last_s
        now_s = time.monotonic()
        round_s, last_s = now_s - last_s, now_s
        left_s = settings.search.max_time_s - (now_s - begun_s)
        if rounds.counted < comparison.MIN_PAIRS or left_s <= 0:
            return left_s <= 0 and len(rounds.starts) >= len(ARMS) * comparison.MIN_PAIRS
        if rule is None:  # from the last round's time, as servers settle in the first
            fits = rounds.counted + int(left_s / round_s)
            rule = _rule(order, max(sequential.MIN_PAIRS, min(MAX_ROUNDS, fits)))
        both = rounds.measurements
        return comparison.is_enough(both["A"], both["B"], [name], rule)

    bench.stream = 1
    return verification.alternate(
        source, rounds=MAX_ROUNDS, needs=needs_of(settings), report=report, is_enough=is_enough
    )


def _rule(order: AbSpec, most: int) -> sequential.StoppingRule:
    return sequential.StoppingRule(
        most=most, sd=ASSUMED_SD, at=0.0 if order.limit is None else order.limit.at
    )


def _check_arms(starts: Sequence[RoundEvaluation]) -> None:
    """Give up if an arm has failed too often.

    Raises:
        TunerError: with its last reason.
    """
    for role in ARMS:
        own = [one for one in starts if one.role == role][-LOST_ROUNDS:]
        if len(own) == LOST_ROUNDS and all(one.measurement is None for one in own):
            raise TunerError(f"{role} cannot be measured: {own[-1].outcome.reason}")


def _verdict(order: AbSpec, rounds: verification.Rounds) -> Verdict:
    if rounds.counted < comparison.MIN_PAIRS:
        reasons = [one.outcome.reason for one in rounds.starts if one.measurement is None]
        why = f": {reasons[-1]}" if reasons else "; use more time (--max-time)"
        raise TunerError(f"{rounds.counted} rounds worked, too few to compare{why}")
    found = comparison.compare(
        default=rounds.measurements["A"],
        best=rounds.measurements["B"],
        objective=_objective(order),
        rule=_rule(order, max(rounds.counted, comparison.MIN_PAIRS)),
        names=ARMS,
    )
    return dataclasses.replace(found, launch_sd=verification.evaluation_sd(rounds.starts, ARMS))


def _decision(order: AbSpec, verdict: Verdict, tallies: Mapping[str, FailureCount]) -> str:
    """Apply the threshold to the interval; never "within" if B failed more often."""
    if order.limit is None:
        return verdict.outcome
    low, high = verdict.interval.low, verdict.interval.high
    assert low is not None
    assert high is not None
    ends = [math.log(low) - order.limit.at, math.log(high) - order.limit.at]
    if not objectives.find_objective(order.limit.objective).is_minimised:
        ends = [-end for end in reversed(ends)]
    if ends[1] <= 0:
        return "undecided" if fails_more(tallies) else "within"
    return "worse" if ends[0] > 0 else "undecided"


def fails_more(tallies: Mapping[str, FailureCount]) -> bool:
    """Whether evaluations of B failed more often than those of A."""
    return tallies["B"].failed > tallies["A"].failed


@contextlib.contextmanager
def _measuring(
    bench: Evaluator, sides: Mapping[str, AbArm]
) -> Iterator[tuple[verification.MeasuresRounds, str | None]]:
    """Yield the source of rounds, and why it does not interleave, or None."""
    contenders = {
        role: Arm(
            launcher=side.launcher,
            configuration=side.configuration,
            payloads_of=side.payloads_of,
        )
        for role, side in sides.items()
    }
    try:
        residents = InterleavedRounds.open(bench, contenders, round_trip_s=0.0)
    except CannotInterleave as error:
        yield SequentialRounds(bench, contenders), str(error)
        return
    with residents:
        yield residents, None


def _arms(order: AbSpec, terminal: Terminal) -> dict[str, AbArm]:
    """Return both arms, checked without starting anything.

    Raises:
        WrongUse: an arm is invalid, or they are the same.
    """
    order = dataclasses.replace(order, settings=_with_sent(order))
    found = {
        role: _find_arm(role, text, order, terminal)
        for role, text in zip(ARMS, order.words, strict=True)
    }
    same = _SameInputs()
    found = {
        role: dataclasses.replace(side, payloads_of=same.checked(role, side))
        for role, side in found.items()
    }
    a, b = found["A"], found["B"]
    if (a.told, a.configuration) == (b.told, b.configuration):
        raise UsageError(
            f"A and B are the same: {a.told}; tune doctor --noise measures this machine's noise"
        )
    return found


def _with_sent(order: AbSpec) -> StudySettings:
    """Return the settings, with missing inputs from the compared studies.

    Raises:
        WrongUse: two studies had different inputs.
    """
    target = order.settings.target
    told: dict[str, Any] = {}
    for role, text in zip(ARMS, order.words, strict=True):
        folder = _study_folder(text, order)
        if folder is None:
            continue
        kept = study_files.settings_of(run_folder.find(folder.parent, folder.name)).target
        for name in SENT:
            value = getattr(kept, name)
            if getattr(target, name) or not value:
                continue
            if told.setdefault(name, value) != value:
                raise UsageError(
                    f"the studies were sent different inputs ({name}: {told[name]} and "
                    f"{value}, of {role}); choose one for both (--{name})"
                )
    return dataclasses.replace(order.settings, target=dataclasses.replace(target, **told))


def _study_folder(text: str, order: AbSpec) -> pathlib.Path | None:
    """Return a study's folder by path or name, or None."""
    path = pathlib.Path(text)
    below = pathlib.Path(order.settings.store.runs_dir) / text
    if (path / run_folder.SETTINGS_FILE).exists():
        return path
    return below if not path.exists() and (below / run_folder.SETTINGS_FILE).exists() else None


class _SameInputs:
    """Check that both models take the same inputs."""

    def __init__(self) -> None:
        self._first: tuple[str, EngineInfo] | None = None

    def checked(self, role: str, side: AbArm) -> Callable[[EngineInfo], Payloads]:
        """Return the arm's payload function with that check."""

        def payloads_of(served: EngineInfo) -> Payloads:
            if self._first is None:
                self._first = role, served
            first, before = self._first
            if before.signature is not None and served.signature is not None:
                one, other = _inputs(before), _inputs(served)
                if one != other:
                    raise UsageError(
                        f"{first} takes {one}, {role} takes {other}: only targets with "
                        "the same inputs can be compared"
                    )
            return side.payloads_of(served)

        return payloads_of


def _inputs(served: EngineInfo) -> str:
    signature = served.told_signature()
    return ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in signature.inputs)


def _find_arm(role: str, text: str, order: AbSpec, terminal: Terminal) -> AbArm:
    target = order.settings.target
    if "://" in text:
        return _of_url(role, text, target, terminal)
    path = pathlib.Path(text)
    if (folder := _study_folder(text, order)) is not None:
        return _of_study(role, folder, target, terminal)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        data = _document(path)
        if "command" in data:
            return _of_engine(role, f"command:{text}", target, terminal)
        return _of_settings(role, path, target, terminal)
    return _of_model(role, text, target, terminal)


def _document(path: pathlib.Path) -> Mapping[str, object]:
    try:
        found = bounded_yaml.read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not YAML: {yaml_problem(error)}") from error
    return found if isinstance(found, dict) else {}


def _make_arm(
    role: str,
    told: str,
    target: TargetSettings,
    terminal: Terminal,
    configuration: Configuration | None = None,
    *,
    engine: OtherEngine | None = None,
    is_running: bool = False,
) -> AbArm:
    """Return an arm with its launcher; an `engine` of None is Luthier's own."""
    card = targets.find_spec(target, engine)

    def say(text: str) -> None:
        console_text.write_line(terminal.console, f"{role}: {text}", style="yellow")

    launcher = targets.launcher_of(engine, target, card, say=say)
    if isinstance(launcher, CommandLauncher):  # its reserved resources count, even by default
        configuration = Configuration({**launcher.defaults, **(configuration or {})})

    def payloads_of(served: EngineInfo) -> Payloads:
        found = targets.payloads_of(engine, target, card, served, seed=0)
        assert isinstance(found, Payloads), "a scenario cannot be a side"
        return found

    return AbArm(
        told=told,
        launcher=launcher,
        configuration=configuration or Configuration({}),
        payloads_of=payloads_of,
        model=target.model,
        is_running=is_running,
    )


def _workload_in_words(target: TargetSettings) -> str:
    if target.rate is None:
        load = f"{target.concurrency:,} in flight" if target.concurrency else "a trace"
    else:
        load = rate_in_words(target.rate)
    return load if target.client_batch == 1 else f"{load}, {target.client_batch} items each"


def _of_model(role: str, text: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    if not pathlib.Path(text).exists():
        try:
            zoo.find(text, is_trusted=target.trust)  # raises with known names
        except ServingError as error:
            raise UsageError(
                f"{role}: {text} is not a file, a study or a model: {error}"
            ) from error
    return _make_arm(
        role, f"model {text}", dataclasses.replace(target, model=text, space=None), terminal
    )


def _of_engine(role: str, engine: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    _check_model(role, engine, target)
    target = dataclasses.replace(target, engine=engine)
    return _make_arm(
        role,
        f"{target.model} behind {engine}",
        target,
        terminal,
        engine=targets.engine_of(target),
    )


def _of_settings(
    role: str, path: pathlib.Path, target: TargetSettings, terminal: Terminal
) -> AbArm:
    """Return the arm of a settings file, as from `tune export`."""
    _check_model(role, str(path), target)
    try:
        data = read_file(path)
        ServingSettings().changed(data, source=f"{role}: settings file {path}")
    except InvalidSettings as error:
        raise UsageError(str(error)) from error
    flat = dict(_flat(data))
    if (own_of := next((name for name in flat if name not in SETTINGS), None)) is not None:
        raise UsageError(
            f"{role}: {path} sets {own_of} for one model; give it as a setting of all "
            "models, without models.NAME"
        )
    own = {name: value for name, value in flat.items() if not name.startswith("server.")}
    if left := [name for name in flat if name not in own and flat[name] != SETTINGS[name].default]:
        console_text.write_line(
            terminal.console,
            f"{role}: {', '.join(left)} of {path} belong to a server and are not "
            "compared: both sides use the defaults",
            style="yellow",
        )
    return _make_arm(role, f"{target.model} with {path}", target, terminal, Configuration(own))


def _of_study(role: str, path: pathlib.Path, target: TargetSettings, terminal: Terminal) -> AbArm:
    """Return the arm of a study's recommendation."""
    folder = run_folder.find(path.parent, path.name)
    settings = study_files.settings_of(folder)
    if not study_files.is_finished(folder):
        raise UsageError(
            f"{role}: study {folder.name} is not finished and has no recommendation yet"
        )
    record = study_files.read(folder, study_files.store_of(folder, settings), settings)
    advice = advise(record)
    if advice is None:
        raise UsageError(f"{role}: study {folder.name} has no configuration that worked")
    if record.shared is not None:
        raise UsageError(f"{role}: study {folder.name} is of a scenario; a side has one model")
    sent = {name: getattr(target, name) for name in (*LOAD, *SENT)}
    target = dataclasses.replace(settings.target, space=None, fixed=(), **sent)
    told = f"the recommendation of study {folder.name} for {target.model}"
    engine = targets.engine_of(target, kept=study_files.engine_copy(folder))
    return _make_arm(role, told, target, terminal, advice.configuration, engine=engine)


def _of_url(role: str, url: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    """Return the arm of a running server."""
    engine = targets.running_engine(url)
    _check_listens(role, url, engine)
    if engine.request.protocol == "raw" and target.payload is None:
        form = dataclasses.replace(engine.request, method="GET")
        engine = dataclasses.replace(engine, request=form)
    model = engine.request.model or target.model
    if engine.request.protocol == "open-inference":
        _check_model(role, url, dataclasses.replace(target, model=model))
    target = dataclasses.replace(target, model=model, engine=f"url:{url}", hook="-")
    return _make_arm(role, url, target, terminal, engine=engine, is_running=True)


def _check_listens(role: str, url: str, engine: UrlEngine) -> None:
    """Raise WrongUse, before anything starts, if nothing listens."""
    try:
        socket.create_connection((engine.host, engine.port), timeout=CONNECT_S).close()
    except OSError as error:
        raise UsageError(
            f"{role}: nothing listens at {url} ({error.strerror or error}): start that "
            "server, or correct its address"
        ) from error


def _check_model(role: str, text: str, target: TargetSettings) -> None:
    if target.model == NO_MODEL:
        raise UsageError(f"{role}: {text} names no model: give --model NAME|FILE")


def _flat(data: Mapping[str, object], within: str = "") -> Iterator[tuple[str, Value]]:
    """Yield settings by dotted name, without nulls."""
    for name, value in data.items():
        whole = f"{within}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{whole}.")
        elif isinstance(value, int | float | str | bool):
            yield whole, value
