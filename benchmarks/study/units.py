"""Units of the study: each is measured by itself in a few minutes, in the order of this list.

In: nothing. Out: `Unit`s, the most informative first. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

CONCURRENCIES = (1, 5, 10, 20, 30, 40, 50, 60)
"""Those of the study."""
MAIN = (20, 5, 1, 60)
"""Concurrencies that are searched first, and with every seed."""
SEEDS = (0, 1, 2)
CONTAINED = (20, 5)
"""Concurrencies that are searched in containers."""
SMALL = (5, 4)
"""Concurrent requests and items per request of the study's own optimum."""
MODELS = ("resnet", "opennmt", "gan")
REVIEWED = ("linear", "reviews", "mnist")
"""Models of the Clipper review's figures of batches."""
SLOWER = ("resnet", "opennmt")
LOADS = (20, 200)
"""Clients of the Clipper review, and ten times as many."""
WAITS_US = (0, 5000)
"""Timeouts of batches: take what is there, and wait for a full batch."""
QUOTAS = (0.25, 0.5)
"""Cores of a replica that does not saturate the machine alone."""
TABLES = ("resnet-5", "resnet-20", "reviews-20", "reviews-60", "opennmt-20")
"""Recorded tables of this engine whose searches are replayed."""
BLOCKS = range(4)
"""Blocks of seeds of a replay."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of measurement; its row is kept when it is complete."""

    kind: str
    model: str
    """Bundled model; of a replay the recorded table."""
    spawner: str = "process"
    concurrency: int = 20
    client_batch: int = 1
    seed: int = 0
    """Seed of the searches; of a replay the block of seeds."""
    form: float = 0
    """Timeout of `batch` in microseconds, or quota of `replicas` in cores."""

    @property
    def name(self) -> str:
        """Name of the unit's file."""
        return "_".join(str(value) for value in dataclasses.astuple(self))


def units() -> tuple[Unit, ...]:
    """Return all units in the order of their measurement."""
    return tuple(dict.fromkeys(_units()))


def _units() -> Iterator[Unit]:
    yield from _searches(MAIN, SEEDS[:1])
    in_flight, items = SMALL
    for model in MODELS:
        yield Unit(kind="search", model=model, concurrency=in_flight, client_batch=items)
    for model in MODELS:
        yield Unit(kind="clusters", model=model)
        yield Unit(kind="growth", model=model)
        yield Unit(kind="sample", model=model)
    yield Unit(kind="variants", model="resnet")
    yield from _searches(CONCURRENCIES, SEEDS[:1])
    for seed in SEEDS:
        yield Unit(kind="repeated", model="resnet", seed=seed)
    for model, n, wait_us in itertools.product(REVIEWED, LOADS, WAITS_US):
        yield Unit(kind="batch", model=model, concurrency=n, form=wait_us)
    for model, quota in itertools.product((*REVIEWED, "resnet"), QUOTAS):
        yield Unit(kind="replicas", model=model, form=quota)
    for model in (*SLOWER, *REVIEWED):
        yield Unit(kind="slo", model=model, concurrency=LOADS[-1])
    yield from _searches(MAIN, SEEDS[1:])
    for block, table in itertools.product(BLOCKS, TABLES):
        yield Unit(kind="replay", model=table, seed=block)
    for n, model in itertools.product(CONTAINED, MODELS):
        yield Unit(kind="search", model=model, spawner="docker", concurrency=n)


def _searches(concurrencies: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[Unit]:
    for seed, n, model in itertools.product(seeds, concurrencies, MODELS):
        yield Unit(kind="search", model=model, concurrency=n, seed=seed)
