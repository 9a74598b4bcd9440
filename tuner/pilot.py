"""The noise pilot: some configurations launched afresh in rounds, so that blocks, launches and the time of day
can be told apart.

    inputs -> engine started once -> a look at some configurations -> rounds, shuffled -> components

In: settings and counts. Out: a `Pilot`: every launch with its blocks, and what they tell: components of the
noise, the length of trials, the smallest gain of a verdict. Writes nothing, so that an interruption
leaves nothing behind.

Every round launches every configuration once, in a new order: so a round is a time that all of them
share, and neither time nor neighbours are a property of a configuration. A launch is that of a trial: fresh
replicas, a gateway that lives on.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np

from tuner import inputs, other_engines
from tuner.bench import Bench, Launch
from tuner.errors import TunerError, WrongUse
from tuner.interruption import resumable
from tuner.measurement import blocks as block_means
from tuner.measurement import doubts, nested, power, sequential, summary
from tuner.measurement.nested import Components, PilotLaunch, Pooled
from tuner.preparation import bench_of, prepared
from tuner.progress import Progress, Terminal
from tuner.report import wording
from tuner.sampling import candidates as cells_of
from tuner.settings import QUOTA_PERIOD_S, StudySettings
from tuner.values import Configuration, Measurement, Outcome, RequestRecords

BLOCK_S = 0.5
"""Least length of a block."""
LOOKED_AT = 2
"""Configurations that are looked at for each that is launched again: the slower half is left out, because
a search hardly measures there, and blocks as long as its round trips ask for would take minutes."""
LOOK_SHARE = 0.5
"""Of the study's length of a trial, measured of each."""
LENGTHS_S = (0.4, 1.0, 2.0, 4.0, 8.0)
"""Lengths of a trial that are compared."""
SPENT_S = 60.0
"""Time of launches of one configuration, after which its error is told."""
LEAST_SECONDS = 0.4
"""Of a trial: four blocks of one period of CPU quotas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is measured."""

    settings: StudySettings
    """Target, warm-up, timeout and pairs of the study that is asked about; the seed of the orders."""
    configurations: int = 8
    launches: int = 6
    """Of each: rounds."""
    blocks: int = 6
    """Of each launch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One launch, whatever happened."""

    configuration: int
    turn: int
    """The round, from 0."""
    started_at: float
    """Unix time."""
    took_s: float
    """From the order to the next one."""
    outcome: Outcome
    blocks_ms: tuple[float, ...]
    """Mean round trip of each block; empty unless the outcome is ok."""
    is_disturbed: bool = False
    """Whether the host took more than 5 % of the machine meanwhile; then it enters no figure."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What trials of one length tell."""

    seconds: float
    launch_error: float
    """Of one launch, against launches of other times."""
    launches: float
    """That fit into `SPENT_S`."""
    error: float
    """Of one configuration after `SPENT_S` of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a verdict can show."""

    pairs: int
    smallest: float
    """With a probability of 80 %: 0.04 is 4 % less."""
    pessimistic: float
    """The same where launches differ by the upper end of their interval."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What was measured, and what follows."""

    model: str
    concurrency: int
    default: Configuration
    configurations: tuple[Configuration, ...]
    used: tuple[int, ...]
    """Numbers of the configurations in `pooled`, in order: those with two launches or more."""
    tried: tuple[Tried, ...]
    block_s: float
    components: Components
    pooled: Pooled
    overhead_s: float
    """What a launch takes beside its measured time, the warm-up included."""
    useful_s: float
    """Length of a trial that tells most for its time; infinite where launches do not differ."""
    recommended_s: float
    """The same as `--seconds` takes it; the study's own length where launches do not differ."""
    lengths: tuple[Length, ...]
    gains: tuple[Gain, ...]
    """Of the fewest and of the most pairs of a study."""

    @property
    def failed(self) -> int:
        """Launches without a result."""
        return sum(one.outcome.status != "ok" for one in self.tried)

    @property
    def disturbed(self) -> int:
        """Launches that the host disturbed."""
        return sum(one.is_disturbed for one in self.tried)


def measure(order: Order, *, terminal: Terminal) -> Pilot:
    """Launch and read.

    Raises:
        WrongUse: an input is wrong; nothing was measured.
        TunerError: it could not be done.
        Interrupted: a signal came; nothing was kept.
    """
    settings = order.settings
    engine = other_engines.engine_of(settings.target)
    card = other_engines.card_of(settings.target, engine)
    with resumable(None), bench_of(settings, card, engine, terminal) as bench:
        arena, _payloads, served = prepared(bench, settings, card, engine, terminal)
        piloting = _Piloting(order, bench, arena, terminal)
        chosen, block_s = piloting.look()
        tried = piloting.rounds(chosen, block_s)
    return read(
        order,
        model=served.model,
        default=arena.default,
        configurations=chosen,
        tried=tried,
        block_s=block_s,
    )


def read(
    order: Order,
    *,
    model: str,
    default: Configuration,
    configurations: Sequence[Configuration],
    tried: Sequence[Tried],
    block_s: float,
) -> Pilot:
    """What the launches tell.

    Raises:
        TunerError: too few of them worked.
    """
    usable = nested.usable(
        [
            PilotLaunch(
                configuration=one.configuration,
                turn=one.turn,
                started_at=one.started_at,
                blocks=one.blocks_ms,
            )
            for one in tried
            if not one.is_disturbed
        ]
    )
    found = nested.components(usable, block_s=block_s) if usable else None
    if found is None:
        reason = next((one.outcome.reason for one in tried if one.outcome.reason), "")
        text = f"too few launches worked to tell their noise ({len(usable)} of {len(tried)})"
        raise TunerError(f"{text}: {reason}" if reason else text)
    measurement = order.settings.measurement
    measured_s = order.blocks * block_s
    worked_s = [one.took_s for one in tried if one.blocks_ms]
    overhead_s = max(0.0, statistics.median(worked_s) - measured_s)
    pooled = nested.pooled(usable)
    useful_s = found.best_seconds(overhead_s)
    typical_s = statistics.median(own.mean for own in pooled.own) / 1e3
    return Pilot(
        model=model,
        concurrency=order.settings.target.in_flight,
        default=default,
        configurations=tuple(configurations),
        used=tuple(sorted({launch.configuration for launch in usable})),
        tried=tuple(tried),
        block_s=block_s,
        components=found,
        pooled=pooled,
        overhead_s=overhead_s,
        useful_s=useful_s,
        recommended_s=recommended_seconds(useful_s, typical_s, usual_s=measurement.measured_s),
        lengths=tuple(_length(found, seconds, overhead_s) for seconds in LENGTHS_S),
        gains=tuple(
            _gain(found, pairs, measurement.measured_s)
            for pairs in sorted({min(sequential.LEAST_PAIRS, measurement.pairs), measurement.pairs})
        ),
    )


def recommended_seconds(useful_s: float, round_trip_s: float, *, usual_s: float) -> float:
    """A trial's length as `--seconds` takes it: whole periods of the quota, and four blocks of two round trips.

    Args:
        useful_s: the best length; infinite where launches do not differ.
        round_trip_s: mean of a typical configuration.
        usual_s: what is recommended where launches do not differ.
    """
    if math.isinf(useful_s):
        return usual_s
    least_s = 4 * block_means.block_seconds(QUOTA_PERIOD_S, round_trip_s)
    whole_s = math.ceil(useful_s / QUOTA_PERIOD_S - 1e-9) * QUOTA_PERIOD_S
    return round(max(LEAST_SECONDS, least_s, whole_s), 1)


def _length(found: Components, seconds: float, overhead_s: float) -> Length:
    return Length(
        seconds=seconds,
        launch_error=math.sqrt(found.launch_variance(seconds, over_time=True)),
        launches=SPENT_S / (overhead_s + seconds),
        error=found.error_after(SPENT_S, seconds=seconds, overhead_s=overhead_s),
    )


def _gain(found: Components, pairs: int, seconds: float) -> Gain:
    """Of pairs whose launches are as long as the study's."""
    sd = math.sqrt(found.launch_variance(seconds, over_time=False))
    high = found.launch.interval.high
    worst = dataclasses.replace(
        found,
        launch=dataclasses.replace(found.launch, sd=found.launch.sd if high is None else high),
    )
    worst_sd = math.sqrt(worst.launch_variance(seconds, over_time=False))
    smallest, pessimistic = (power.smallest_gain(each, pairs) for each in (sd, worst_sd))
    assert smallest is not None  # a study has two pairs or more
    assert pessimistic is not None
    return Gain(pairs=pairs, smallest=smallest, pessimistic=pessimistic)


class _Piloting:
    """One pilot under way."""

    def __init__(self, order: Order, bench: Bench, arena: inputs.Arena, terminal: Terminal) -> None:
        self._order = order
        self._bench = bench
        self._arena = arena
        self._terminal = terminal
        self._rng = np.random.default_rng(order.settings.search.seed)
        self._progress = Progress(terminal.console, default=arena.default, objective="mean")

    def look(self) -> tuple[tuple[Configuration, ...], float]:
        """The configurations to launch again, the default first, and the length of their blocks.

        Raises:
            WrongUse: the space has one configuration.
            TunerError: too few work.
        """
        wanted = self._order.configurations
        spread = self._spread(LOOKED_AT * wanted)
        if len(spread) < 2:
            raise WrongUse(
                "--noise: the search space has one configuration only on this machine; "
                "name another with --space"
            )
        self._progress.say(f"a look at {wording.plural(len(spread), 'configuration')}")
        settings = self._order.settings.measurement
        look_s = max(LEAST_SECONDS, LOOK_SHARE * settings.measured_s)
        self._bench.settings = dataclasses.replace(settings, seconds=look_s)
        seen: dict[Configuration, Measurement] = {}
        reason = ""
        for cell in spread:
            launch = self._launch(cell)
            if launch.measurement is not None:
                seen[cell] = launch.measurement
            reason = reason or launch.outcome.reason
        if len(seen) < 2:
            raise TunerError(f"the noise cannot be measured: {reason}")
        return chosen_of(seen, wanted, default=self._arena.default)

    def rounds(self, chosen: Sequence[Configuration], block_s: float) -> tuple[Tried, ...]:
        """Launch all of them, in every round in a new order."""
        order = self._order
        measured_s = order.blocks * block_s
        settings = order.settings.measurement
        self._bench.settings = dataclasses.replace(settings, seconds=measured_s)
        of = order.launches * len(chosen)
        self._progress.say(
            f"{wording.plural(len(chosen), 'configuration')}, {wording.plural(order.launches, 'launch')} "
            f"of each in shuffled rounds, {wording.plural(order.blocks, 'block')} of {block_s:g} s",
            style="bold",
        )
        tried: list[Tried] = []
        begun_s = time.monotonic()
        for turn in range(order.launches):
            for place in self._rng.permutation(len(chosen)):
                before_s = time.monotonic()
                launch = self._launch(chosen[place])
                took_s = time.monotonic() - before_s
                tried.append(self._tried(launch, int(place), turn, took_s, block_s))
                left_s = (time.monotonic() - begun_s) / len(tried) * (of - len(tried))
                if len(tried) == 1:
                    self._progress.expected(took_s * of, now=dt.datetime.now().astimezone())
                disturbed = " (disturbed by the host)" if tried[-1].is_disturbed else ""
                self._progress.say(
                    f"{len(tried):3d}/{of} round {turn + 1}{disturbed} "
                    f"{self._progress.result(launch.outcome, launch.measurement)} | "
                    f"{self._progress.differences(launch.configuration)} | "
                    f"{wording.duration(left_s)} left"
                )
        return tuple(tried)

    def _spread(self, most: int) -> list[Configuration]:
        """The default and others, spread over the space."""
        candidates = self._arena.candidates
        found = [self._arena.default]
        for vector in cells_of.sobol(candidates.design_width, most - 1, self._rng):
            free = candidates.unseen(found)
            if not len(free):
                break
            found.append(candidates.cells[candidates.nearest(vector, free)])
        return found

    def _launch(self, cell: Configuration) -> Launch:
        launch = self._bench.launch(cell)
        self._terminal.check()
        return launch

    def _tried(self, launch: Launch, place: int, turn: int, took_s: float, block_s: float) -> Tried:
        measured, records = launch.measurement, launch.records
        tried = Tried(
            configuration=place,
            turn=turn,
            started_at=launch.started_at,
            took_s=took_s,
            outcome=launch.outcome,
            blocks_ms=(),
        )
        if measured is None or records is None:
            return tried
        cores = self._arena.environment.machine.cores
        return dataclasses.replace(
            tried,
            blocks_ms=blocks_of(records, measured, block_s),
            is_disturbed=doubts.is_disturbed(measured.noise, loaded_s=launch.loaded_s, cores=cores),
        )


def chosen_of(
    seen: dict[Configuration, Measurement], wanted: int, *, default: Configuration
) -> tuple[tuple[Configuration, ...], float]:
    """The default and the fastest others, and a length of blocks that spans two of their round trips.

    Args:
        seen: what was looked at and worked; the default may have failed.
        wanted: configurations.
        default: is kept whatever its speed.
    """
    ordered = sorted(seen, key=lambda cell: (cell != default, seen[cell].mean_ms))
    chosen = tuple(ordered[:wanted])
    slowest_s = max(seen[cell].mean_ms for cell in chosen) / 1e3
    return chosen, block_means.block_seconds(BLOCK_S, slowest_s)


def blocks_of(records: RequestRecords, measured: Measurement, block_s: float) -> tuple[float, ...]:
    """Means of the whole blocks of a launch, in ms."""
    counted = summary.is_measured(records, warmup_s=measured.warmup_s, seconds=measured.seconds)
    counted &= summary.is_ok(records)
    in_turn = np.argsort(records.finished_s[counted], kind="stable")
    finished_s = records.finished_s[counted][in_turn]
    found = block_means.cut(
        finished_s,
        finished_s - records.intended_s[counted][in_turn],
        start_s=measured.warmup_s,
        seconds=measured.seconds,
        block_s=block_s,
    )
    return tuple(block.mean_ms for block in found)
