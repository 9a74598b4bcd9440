"""Sampling: random configurations under random workloads, one evaluation each.

    inputs -> engine started once -> draws -> evaluations -> one CSV row each

A draw depends only on seed and number, so a killed command resumes. The environment is uniform over
the given values, then each knob over its grid, within the constraints. Equivalent draws and
failures are kept.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np

from serving.values import ModelCard
from tuner import inputs
from tuner.bench import Bench
from tuner.errors import Interrupted, WrongUse
from tuner.interruption import resumable
from tuner.launching import machine
from tuner.launching.engine import Served
from tuner.preparation import started
from tuner.progress import Progress, Terminal
from tuner.report import wording
from tuner.sample_file import Draw, SampleFile
from tuner.settings import MeasurementSettings, TargetSettings, load_in_words
from tuner.space.space import SearchSpace
from tuner.traffic import stacking


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Specification of a sample."""

    target: TargetSettings
    """Concurrency and client batch are the largest below."""
    measurement: MeasurementSettings
    concurrencies: tuple[int, ...]
    client_batches: tuple[int, ...]
    count: int
    """Rows of the file."""
    seed: int
    out: pathlib.Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Result of a sampling."""

    columns: tuple[str, ...]
    statuses: collections.Counter[str]
    """Rows per status."""
    measured: int
    """Rows added by this command."""
    notes: tuple[str, ...]


def sample(order: Order, *, terminal: Terminal) -> Sampled:
    """Measure the missing rows.

    Raises:
        WrongUse: an invalid input, or a file of other draws; nothing was measured.
        TunerError: it failed.
        Interrupted: a signal came; rows are saved.
    """
    card = inputs.card_of(order.target.model, is_trusted=order.target.trust)
    text = inputs.space_text_of(order.target, card)
    if text is None:
        raise WrongUse(
            f"--model {order.target.model} has no search space of its own: derive one with "
            "`tune space`, look it over, and give it with --space"
        )
    bench = Bench(
        model=order.target.model,
        concurrency=order.target.in_flight,
        settings=order.measurement,
        launcher=inputs.launcher_of(order.target),
    )
    with resumable(None), bench:
        served = started(bench)
        stacking.check_free(served.told_signature(), max(order.client_batches), served.model)
        sent = inputs.payloads_of(order.target, card, served, seed=order.seed)
        bench.send(sent)
        source = order.target.space or f"{card.name}.yaml"
        text = inputs.with_variants(text, order.target, card, source=source)
        spaces = _Spaces(order.target, card, text, source=source, served=served)
        draws = [_draw(order, spaces, number) for number in range(order.count)]
        widest = spaces.of(order.target.in_flight, order.target.client_batch)
        notes = widest.notes
        if sent.is_synthetic:
            notes += (f"the payloads are synthetic ({sent.description})",)
        file = SampleFile(
            order.out,
            model=served.model,
            home=order.target.home,
            seed=order.seed,
            knobs=widest.names,
        )
        with file:
            file.check(draws)
            done = len(file.statuses)
            progress = Progress(terminal.console, default=widest.default(), objective="mean")
            for note in notes:
                progress.say(f"note: {note}")
            if done:
                progress.say(f"{order.out} has {wording.plural(done, 'row')}: going on behind them")
            try:
                for draw, left_s in _with_time(draws[done:]):
                    _measure(order, bench, card, served, draw, file, progress, left_s)
                    terminal.check()
            except KeyboardInterrupt:
                kept = f"{len(file.statuses)} of {order.count} rows are in {order.out}"
                raise Interrupted(f"{kept}; the same command goes on behind them") from None
            return Sampled(
                columns=file.columns,
                statuses=collections.Counter(file.statuses),
                measured=len(file.statuses) - done,
                notes=notes,
            )


class _Spaces:
    """Search spaces by workload."""

    def __init__(
        self, target: TargetSettings, card: ModelCard, text: str, *, source: str, served: Served
    ) -> None:
        self._target = target
        self._card = card
        self._text = text
        self._source = source
        self._limits = served.limits
        self._facts = machine.read()
        environment = inputs.environment_of(target, self._facts, card)
        self._machine = inputs.with_gpu(environment, text, device=served.device).machine
        self._known: dict[tuple[int, int], SearchSpace] = {}

    def of(self, concurrency: int, client_batch: int) -> SearchSpace:
        """Return a workload's space."""
        load = (concurrency, client_batch)
        if load not in self._known:
            target = dataclasses.replace(
                self._target, concurrency=concurrency, client_batch=client_batch
            )
            environment = dataclasses.replace(
                inputs.environment_of(target, self._facts, self._card), machine=self._machine
            )
            self._known[load] = inputs.space_of(
                self._text, environment, source=self._source, limits=self._limits
            )
        return self._known[load]


def _draw(order: Order, spaces: _Spaces, number: int) -> Draw:
    rng = np.random.default_rng([order.seed, number])
    concurrency = order.concurrencies[int(rng.integers(len(order.concurrencies)))]
    client_batch = order.client_batches[int(rng.integers(len(order.client_batches)))]
    configuration = spaces.of(concurrency, client_batch).drawn(rng)
    return Draw(number, concurrency, client_batch, configuration)


def _with_time(draws: Sequence[Draw]) -> Iterator[tuple[Draw, float | None]]:
    """Yield draws with seconds left; None at first."""
    begun_s = time.monotonic()
    for place, draw in enumerate(draws):
        used_s = time.monotonic() - begun_s
        yield draw, used_s / place * (len(draws) - place) if place else None


def _measure(
    order: Order,
    bench: Bench,
    card: ModelCard,
    served: Served,
    draw: Draw,
    file: SampleFile,
    progress: Progress,
    left_s: float | None,
) -> None:
    """Evaluate one draw and write its row."""
    bench.concurrency = draw.concurrency
    if bench.client_batch != draw.client_batch:
        target = dataclasses.replace(order.target, client_batch=draw.client_batch)
        bench.send(inputs.payloads_of(target, card, served, seed=order.seed))
    launch = bench.launch(draw.configuration)
    file.append(draw, launch)
    left = "" if left_s is None else f" | {wording.duration(left_s)} left"
    progress.say(
        f"{draw.number + 1:4d}/{order.count} {load_in_words(draw.concurrency, draw.client_batch)}: "
        f"{progress.result(launch.outcome, launch.measurement)} | "
        f"{progress.differences(draw.configuration)}{left}"
    )
