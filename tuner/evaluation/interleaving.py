"""Interleaved evaluation: the arms' engines run at once, and the load alternates between them.

Machine speed drifts over seconds and minutes, for all arms alike (docs/measurement.md). Time slices
of a few tenths of a second therefore alternate (A B B A), and drift cancels in the ratio. The
beginning of each slice is not counted. A round evaluates each arm once, with new replicas if
possible, and joins the slices of each arm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Self

from tuner.errors import LaunchFailed, LoadGeneratorFailed, UsageError
from tuner.evaluation.evaluation import Evaluation, Startup, Stopwatch, TimeSlice
from tuner.evaluation.evaluator import Evaluator, retry_lost
from tuner.launching import machine
from tuner.launching.engine import EngineInfo, Launcher, RunningEngine
from tuner.load_generator.payloads import Payloads
from tuner.measurement.time_slices import EXPECTED_STARTUP_S, TimeSlices
from tuner.values.configuration import Configuration

SPARE_SHARE = 0.1
CLOCK = "accelerator.clock_mhz"
"""Knob that must have the same value in all engines on a GPU."""
_LONGER = 1.5
"""Factor of latency growth above which time slices are planned anew."""


class CannotInterleave(Exception):
    """Engines cannot run at once; the message is a one-line reason."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """Arm of a comparison: a launcher and a configuration."""

    launcher: Launcher
    configuration: Configuration
    payloads_of: Callable[[EngineInfo], Payloads] | None = None
    """Function that makes this arm's requests; None to use the evaluator's."""


@dataclasses.dataclass(slots=True, eq=False)
class _RunningArm:
    contender: Arm
    engine: RunningEngine | None
    payloads: Payloads | None
    startup_s: float
    is_fresh: bool = True
    """Whether no round has used this launch yet."""
    is_new: bool = True
    pids: tuple[int, ...] = ()


def evaluate_alone(evaluator: Evaluator, contender: Arm) -> Evaluation:
    """Evaluate an arm on an engine that runs only for this evaluation."""
    watch = Stopwatch()
    configuration = contender.configuration
    try:
        engine = contender.launcher.start(configuration)
    except LaunchFailed as error:
        return evaluator.fail_start(configuration, error, watch.startup())
    try:
        if contender.payloads_of is not None:
            evaluator.send(contender.payloads_of(engine.describe()))
        return evaluator.measure(engine, configuration, watch.startup(), is_new=True)
    finally:
        engine.stop()


class InterleavedRounds:
    """Interleaved rounds; create them with `open`."""

    def __init__(
        self, evaluator: Evaluator, residents: Mapping[str, _RunningArm], *, latency_s: float
    ) -> None:
        self._evaluator = evaluator
        self._residents = residents
        self._latency_s = latency_s
        self.slices = self._slices()

    @classmethod
    def open(cls, evaluator: Evaluator, contenders: Mapping[str, Arm], *, latency_s: float) -> Self:
        """Start each arm's engine; `latency_s` is the mean latency of the slowest arm, or 0.

        Raises:
            CannotInterleave: the engines cannot run at once; all are stopped.
            UsageError: settings are invalid.
            LaunchFailed: the first engine does not start.
        """
        alone = [one.launcher.why_not_interleaved for one in contenders.values()]
        if (why := next(filter(None, alone), None)) is not None:
            raise CannotInterleave(why)
        if len({one.configuration.get(CLOCK) for one in contenders.values()}) > 1:
            raise CannotInterleave(
                f"they share one GPU and set its clock to different values ({CLOCK})"
            )
        evaluator.stop_engine()
        with contextlib.ExitStack() as owned:
            residents: dict[str, _RunningArm] = {}
            needed_mb = 0.0
            for role, contender in contenders.items():
                if residents:
                    _check_memory(needed_mb)
                before_s = time.monotonic()
                try:
                    engine = contender.launcher.start(contender.configuration)
                except (LaunchFailed, UsageError) as error:
                    if isinstance(error, UsageError):
                        raise UsageError(f"{role}: {error}") from None
                    if not residents:
                        raise LaunchFailed(error.cause, f"{role}: {error.text}") from None
                    why = f"{role} does not start alongside the others: {error}"
                    raise CannotInterleave(why) from None
                owned.callback(engine.stop)
                startup_s = time.monotonic() - before_s
                of = contender.payloads_of
                payloads = None if of is None else of(engine.describe())
                residents[role] = _RunningArm(contender, engine, payloads, startup_s)
                pids = (*engine.pids, *engine.replica_facts().pids)
                needed_mb = max(needed_mb, machine.held_mb(pids))
            owned.pop_all()
        return cls(evaluator, residents, latency_s=latency_s)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self._residents)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engines in parallel, since each may use its whole grace period."""
        engines = [one.engine for one in self._residents.values() if one.engine is not None]
        for one in self._residents.values():
            one.engine = None
        with futures.ThreadPoolExecutor(max_workers=max(1, len(engines))) as pool:
            list(pool.map(operator.methodcaller("stop"), engines))

    def _slices(self) -> TimeSlices:
        launches_s = [
            one.startup_s if one.contender.launcher.is_restarted else EXPECTED_STARTUP_S
            for one in self._residents.values()
        ]
        return TimeSlices.of(
            latency_s=self._latency_s,
            startup_s=sum(launches_s) / len(launches_s),
            measured_s=self._evaluator.settings.compared_s,
            arms=len(self._residents),
        )

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm, measured in time slices whose order reverses every turn."""
        done: dict[str, Evaluation] = {}
        begun: dict[str, Startup] = {}
        for role in arms:
            watch = Stopwatch()
            try:
                self._relaunch(self._residents[role])
            except LaunchFailed as error:
                configuration = self._residents[role].contender.configuration
                done[role] = self._evaluator.fail_start(configuration, error, watch.startup())
            begun[role] = watch.startup()
        loaded = [role for role in arms if role not in done]
        is_cut = self._evaluator.workload.uses_time_slices
        measured = self._in_slices(loaded, begun) if is_cut else self._whole(loaded, begun)
        done |= measured
        means_ms = [one.measurement.mean_ms for one in measured.values() if one.measurement]
        if 1e-3 * max(means_ms, default=0.0) > _LONGER * self._latency_s:
            self._latency_s = 1e-3 * max(means_ms)
            self.slices = self._slices()
        for role in arms:
            yield role, done[role]

    def _whole(self, arms: Sequence[str], begun: Mapping[str, Startup]) -> dict[str, Evaluation]:
        found = {}
        for role in arms:
            one = self._residents[role]
            assert one.engine is not None, "it was launched"
            if one.payloads is not None:
                self._evaluator.send(one.payloads)
            is_new, one.is_new = one.is_new, False
            found[role] = self._evaluator.measure(
                one.engine, one.contender.configuration, begun[role], is_new=is_new
            )
        return found

    def _in_slices(
        self, arms: Sequence[str], begun: Mapping[str, Startup]
    ) -> dict[str, Evaluation]:
        parts: dict[str, list[TimeSlice]] = {role: [] for role in arms}
        found: dict[str, Evaluation] = {}
        joined: dict[str, Evaluation] = {}
        turn, turns = 0, 2 * self.slices.quartets
        while turn < turns and len(found) < len(arms):
            for role in arms if turn % 2 == 0 else tuple(reversed(arms)):
                if role in found:
                    continue
                try:
                    parts[role].append(self._slice(role))
                except (LaunchFailed, LoadGeneratorFailed) as error:
                    one = self._residents[role]
                    assert one.engine is not None, "it was launched"
                    found[role] = self._evaluator.fail_phase(
                        one.engine, one.contender.configuration, error, begun[role]
                    )
            turn += 1
            if turn == turns:
                joined = {
                    role: self._evaluator.join_slices(
                        self._residents[role].contender.configuration, parts[role], begun[role]
                    )
                    for role in arms
                    if role not in found
                }
                measured = [one.measurement for one in joined.values() if one.measurement]
                short_s = max(map(self._evaluator.workload.seconds_short, measured), default=0.0)
                turns += 2 * math.ceil(short_s / (2 * self.slices.seconds) - 1e-9)
        return joined | found

    def _relaunch(self, one: _RunningArm) -> None:
        launcher = one.contender.launcher
        try:
            if one.engine is None or not one.engine.is_running():
                if one.engine is not None:
                    one.engine.stop()
                one.engine, one.is_new = launcher.start(one.contender.configuration), True
            elif not one.is_fresh:
                one.engine.apply(one.contender.configuration)
                one.is_new = launcher.is_restarted
            one.is_fresh = False
            one.pids = (*one.engine.pids, *one.engine.replica_facts().pids)
        except LaunchFailed as error:
            if error.cause == "crash" and one.engine is not None:
                one.engine.stop()  # it may hang; the next launch starts a new one
                one.engine = None
            raise

    def _slice(self, arm: str) -> TimeSlice:
        loaded = self._residents[arm]
        engine = loaded.engine
        assert engine is not None, "it was launched"
        is_new, loaded.is_new = loaded.is_new, False
        if loaded.payloads is not None:
            self._evaluator.send(loaded.payloads)
        idle = [pid for name, one in self._residents.items() if name != arm for pid in one.pids]
        return retry_lost(
            lambda: self._evaluator.time_slice(
                engine,
                seconds=self.slices.seconds,
                warmup_s=self.slices.dropped_s,
                is_new=is_new,
                idle=idle,
            )
        )


def _check_memory(needed_mb: float) -> None:
    room_mb = machine.free_mb() - SPARE_SHARE * machine.read().memory_mb
    if needed_mb > room_mb:
        raise CannotInterleave(
            f"they do not fit into memory together: one needs {needed_mb:,.0f} MiB, and "
            f"{max(0.0, room_mb):,.0f} MiB are free"
        )
