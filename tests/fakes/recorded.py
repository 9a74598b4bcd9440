"""A recorded table without an engine: the toy's latencies, with the noise of launches."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import yaml

from tests.fakes import benches, studies
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation, TableHeader
from tuner.lab.tables.table_files import TableFolder
from tuner.space import files
from tuner.values.configuration import Configuration
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import Block, HostNoise
from tuner.values.trial import OK, Outcome

LAUNCH_SD = 0.03
REQUESTS = 500
"""Of a block."""


def head(**changes: object) -> TableHeader:
    """Of the toy's space on four cores, at 20 concurrent requests."""
    arena = benches.arena()
    given: dict[str, object] = {
        "name": "toy-20",
        "model": "toy",
        "concurrency": benches.CONCURRENCY,
        "client_batch": 1,
        "engine": "luthier",
        "spawner": "process",
        "objective": "mean",
        "space": yaml.safe_load(files.dump(arena.space)),
        "default": arena.default,
        "host": {"host": {"cores": 4, "memory_mb": 16_384}},
        "measurement": {"seconds": 2.0, "warmup_s": 0.5, "block_s": 0.5},
        "passes": 3,
        "seed": 0,
    }
    return TableHeader(**{**given, **changes})  # type: ignore[arg-type]


def launch(
    cell: Configuration, number: int, rng: np.random.Generator, *, sweep: int = 0
) -> RecordedEvaluation:
    """One launch of a cell, of 2.6 s, right after the one before."""
    failure = studies.failure({**studies.default(), **cell})
    if failure is not None:
        return RecordedEvaluation(
            number=number,
            cell=cell,
            sweep=sweep,
            started_at=studies.STARTED_AT + 2.6 * number,
            outcome=Outcome(status="infeasible", cause=failure[0], reason=failure[1]),
            startup_s=0.1,
            loaded_s=0.0,
        )
    true_ms = studies.mean_ms(Configuration({**studies.default(), **cell}), benches.CONCURRENCY)
    mean_ms = true_ms * math.exp(LAUNCH_SD * rng.normal())
    took = [mean_ms * np.exp(0.2 * rng.normal(size=REQUESTS)) / math.exp(0.02) for _ in range(4)]
    return RecordedEvaluation(
        number=number,
        cell=cell,
        sweep=sweep,
        started_at=studies.STARTED_AT + 2.6 * number,
        outcome=OK,
        startup_s=0.1,
        loaded_s=2.5,
        blocks=tuple(map(_block, range(4), took)),
        histogram=LatencyHistogram.of(np.concatenate(took)),
        noise=HostNoise(peak_memory_mb=20.5, client_cpu_s=0.25),
    )


def _block(number: int, took_ms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Block:
    return Block(
        start_s=0.5 + 0.5 * number,
        seconds=0.5,
        requests=len(took_ms),
        mean_ms=float(took_ms.mean()),
        p50_ms=float(np.median(took_ms)),
        p99_ms=float(np.quantile(took_ms, 0.99)),
        throughput_per_s=len(took_ms) / 0.5,
        spread_ms=float(np.quantile(took_ms, 0.95) - np.quantile(took_ms, 0.05)),
    )


@functools.cache
def table(*, passes: int = 3, every: int = 8, seed: int = 0) -> BenchmarkTable:
    """Every n-th cell of the toy's space and the default, each launched once per pass; made once."""
    arena = benches.arena()
    cells: Sequence[Configuration] = tuple(
        dict.fromkeys((arena.default, *arena.candidates.configurations[::every]))
    )
    rng = np.random.default_rng(seed)
    launches = [
        launch(cell, number, rng, sweep=sweep)
        for number, (sweep, cell) in enumerate((p, c) for p in range(passes) for c in cells)
    ]
    return BenchmarkTable(head=head(is_finished=True, passes=passes), evaluations=tuple(launches))


def on_a_moving_machine(found: BenchmarkTable, *, period_s: float, sd: float) -> BenchmarkTable:
    """The table as if the machine's speed had swung with so long a period, CPU times included."""
    moved = []
    for one in found.evaluations:
        start_s = one.started_at + one.startup_s
        factors = [
            math.exp(
                math.sqrt(2) * sd * math.sin(2 * math.pi * (start_s + block.start_s) / period_s)
            )
            for block in one.blocks
        ]
        mean = float(np.mean(factors)) if factors else 1.0
        blocks = [
            dataclasses.replace(
                block,
                mean_ms=block.mean_ms * factor,
                p50_ms=block.p50_ms * factor,
                p99_ms=block.p99_ms * factor,
                requests=max(1, round(block.requests / factor)),
                throughput_per_s=block.throughput_per_s / factor,
            )
            for block, factor in zip(one.blocks, factors, strict=True)
        ]
        # As many CPU seconds for fewer requests.
        noise = dataclasses.replace(one.noise, client_cpu_s=0.25, server_cpu_s=1.5)
        histogram = None if one.histogram is None else one.histogram.scale(mean)
        moved.append(
            dataclasses.replace(one, blocks=tuple(blocks), histogram=histogram, noise=noise)
        )
    return dataclasses.replace(found, evaluations=tuple(moved))


def written(path: pathlib.Path, recorded: BenchmarkTable) -> pathlib.Path:
    """The table in a folder of its own, finished."""
    with TableFolder(path) as folder:
        folder.begin(recorded.head)
        for launch_ in recorded.evaluations:
            folder.append(launch_)
        folder.finish(recorded.head)
    return path
