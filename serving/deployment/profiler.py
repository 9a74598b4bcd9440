"""Profiler, which measures a model for the scheduler in its own replica before any request.

The first load stays in memory, and further loads follow, each with another largest batch and an
UNLOAD in between. The first load includes one-time imports, so only its batch times count.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec, declared_inputs
from serving.deployment.pool import Member, Pool, ReplicaContents, Spawner
from serving.errors import InvalidSettings, ReplicaStartFailed, ServingError
from serving.model_spec import ModelSpec
from serving.scheduling.interface import Action, ActionResult, ActionType, Event, Plan, WorkerUp
from serving.settings import ServingSettings
from serving.values import ModelId, Signature, StageTimes

MIN_LOADS = 3
MAX_MEASURED = 10
MIN_MEASURED = 5
NEVER_S = float("inf")
SCATTERED, SCATTERED_BY_PARSING, MAX_SCATTERED_BYTES = 0.15, 0.3, 2 * 2**20
"""Memory lost to fragmentation: share of a model's memory if bundled, if parsed, and maximum.

Bundled models took 5 to 10 % more memory next to others than alone, or 11 to 31 % if loaded from
original files.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Measured costs of a model on one kind of worker."""

    signature: Signature
    load_s: float
    """Seconds that a model load and one call take."""
    batch_s: dict[int, float]
    memory_bytes: int
    """Memory that the model needs in a replica next to other models."""
    told: LoadReport
    stages_s: Mapping[int, tuple[float, float, float]] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form that is saved."""
        told = self.told
        return {
            "signature": self.signature.as_json(),
            "reads_json": self.signature.reads_json,
            **self.facts(),
            "memory_bytes": self.memory_bytes,
            "told": {
                "load_s": told.load_s,
                "device": told.device,
                "warmup": dict(told.warmup),
                "optimised": told.optimised,
            },
        }

    def facts(self) -> dict[str, Any]:
        """Return the measured durations in seconds as JSON."""
        return {
            "load_s": round(self.load_s, 6),
            "batch_s": {str(size): round(took_s, 6) for size, took_s in self.batch_s.items()},
            "stages_s": {
                str(size): [round(each_s, 6) for each_s in stages]
                for size, stages in self.stages_s.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build a profile from its JSON form, which `state.record_schema` must have checked."""
        signature = dataclasses.replace(
            Signature.from_json(data["signature"]), reads_json=data["reads_json"]
        )
        told = data["told"]
        return cls(
            signature=signature,
            load_s=float(data["load_s"]),
            batch_s={int(size): float(took_s) for size, took_s in data["batch_s"].items()},
            memory_bytes=data["memory_bytes"],
            told=LoadReport(
                signature,
                told.get("load_s"),
                told["warmup"],
                told.get("device"),
                optimised=told["optimised"],
            ),
            stages_s={int(size): tuple(stages) for size, stages in data["stages_s"].items()},
        )


class RecentDurations:
    """Recent durations of model loads, and of batches of the profiled sizes."""

    __slots__ = ("_batches", "_loads_s", "_profile")

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile
        self._loads_s: collections.deque[float] = collections.deque(maxlen=MAX_MEASURED)
        self._batches: dict[int, collections.deque[StageTimes]] = {
            size: collections.deque(maxlen=MAX_MEASURED) for size in profile.batch_s
        }

    def load(self, took_s: float) -> None:
        """Add the seconds that a model load took."""
        self._loads_s.append(took_s)

    def batch(self, items: int, times: StageTimes) -> None:
        """Add the times of a batch."""
        seen = self._batches.get(items)
        if seen is not None:
            seen.append(times)

    def taught(self) -> ModelProfile:
        """Return the profile with medians in place of durations that were measured often enough."""
        profile = self._profile
        batches = {
            size: (statistics.median(map(_sum_s, seen)), _each_median([one[1:] for one in seen]))
            for size, seen in self._batches.items()
            if len(seen) >= MIN_MEASURED
        }
        loads_s = self._loads_s if len(self._loads_s) >= MIN_MEASURED else [profile.load_s]
        if not batches and loads_s is not self._loads_s:
            return profile
        return dataclasses.replace(
            profile,
            load_s=statistics.median(loads_s),
            batch_s={**profile.batch_s, **{size: took_s for size, (took_s, _) in batches.items()}},
            stages_s={**profile.stages_s, **{size: each for size, (_, each) in batches.items()}},
        )


def sizes_to(most: int) -> tuple[int, ...]:
    """Return the batch sizes 1, 2, 4, ... and `most`."""
    return tuple(sorted({most, *(2**power for power in range(most.bit_length()))}))


async def profile(
    spec: ModelSpec,
    settings: ServingSettings,
    spawner: Spawner,
    workers: Iterator[int],
    *,
    digest: str | None = None,
) -> ModelProfile:
    """Measure a model in its own replica.

    Args:
        digest: SHA-256 of the file if an optimised model may be loaded and written.

    Raises:
        ServingError: the model cannot be loaded, or it fails on samples.
    """
    one = settings.with_changes({"replica.count": 1})
    run = _ProfilingRun(spec, one, digest)
    dispatcher = Dispatcher(run, on_batch=lambda _: None)
    pool = Pool(spawner, dispatcher, one, run.on_replica_death, workers, run)
    try:
        await pool.open()
        return await run.done  # a load that takes too long ends the replica
    finally:
        await pool.close()
        dispatcher.close(spec.label)


class _ProfilingRun(ReplicaContents):
    """The loads in a profiling replica; serves as both the pool's contents and the scheduler."""

    is_shared = True

    def __init__(self, spec: ModelSpec, settings: ServingSettings, digest: str | None) -> None:
        self.spec: ModelSpec = spec
        self._digest = digest
        self._settings = settings
        sizes = sizes_to(settings.batching.max_size)
        self._sizes = (sizes[0],) * (MIN_LOADS - len(sizes)) + sizes
        self.done: asyncio.Future[ModelProfile] = asyncio.get_running_loop().create_future()
        self._told: list[LoadReport] = []
        self._worker = 0
        self._sent = 0
        self._due = False

    # Pool contents

    def make_load_spec(self, model: ModelId, member: Member) -> LoadSpec:
        limits = member.limits
        known = self._told[-1].signature if self._told else None
        return LoadSpec(
            self.spec,
            limits.threads,
            self._sizes[int(model.version)],
            limits.warmup_s,
            device=member.accelerator.device,
            weights=self.spec.weights(member.model.variant),
            inputs=declared_inputs(self.spec, member.model, pad_to=member.pad_to, known=known),
            digest=self._digest,
            optimises=model.version == "0",
        )

    def on_loaded(self, _model: ModelId, told: LoadReport, _member: Member) -> bool:
        self._told.append(told)
        if len(self._told) == len(self._sizes) and not self.done.done():
            try:
                self.done.set_result(self._make_profile())
            except ServingError as error:
                self._fail(error)
        return False

    def on_load_failed(self, _model: ModelId, error: ServingError) -> None:
        self._fail(error)

    def on_replica_death(self, reason: str, text: str) -> None:
        what = f"the replica that profiled {self.spec.label} ended ({reason}): {text}"
        self._fail(ReplicaStartFailed(reason, what))

    def _fail(self, error: ServingError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieve it: if the pool's start failed, nobody awaits

    # Scheduler

    def waiting_of(self, _model: ModelId) -> int:
        return 0

    def on(self, event: Event, _now_s: float) -> None:
        if isinstance(event, WorkerUp):
            self._worker = event.worker
        elif not isinstance(event, ActionResult) or not event.ok or event.action % 2:
            return  # an UNLOAD has ended
        self._due = True

    def plan(self, _now_s: float) -> Plan:
        actions: list[Action] = []
        if self._due and self._sent < len(self._sizes):
            if self._sent > 1:  # the first model stays, so that the others measure one more model
                actions.append(self._action(ActionType.UNLOAD, self._sent - 1))
            actions.append(self._action(ActionType.LOAD, self._sent))
            self._sent += 1
        self._due = False
        return Plan(actions, [], None)

    def _action(self, kind: ActionType, number: int) -> Action:
        model = ModelId(self.spec.name, str(number))
        id_ = 2 * number + (kind is ActionType.UNLOAD)
        return Action(id_, kind, self._worker, model, [], 0.0, NEVER_S, 0.0)

    # Result

    def _make_profile(self) -> ModelProfile:
        took_s: dict[int, list[float]] = {}
        stages_s: dict[int, list[tuple[float, float, float]]] = {}
        for told in self._told:
            for items, seconds in told.batch_s.items():
                took_s.setdefault(items, []).append(seconds)
            for items, stages in told.stages_s.items():
                stages_s.setdefault(items, []).append(stages)
        if not took_s:
            raise InvalidSettings(
                f"{self.spec.label} cannot be profiled: replica.warmup_s = "
                f"{self._settings.replica.warmup_s:g} leaves no time to run it, or its "
                "synthetic inputs fail; give the model samples (docs/models.md)"
            )
        last = self._told[-1]
        later = self._told[1:]
        alone_bytes = max(told.memory_bytes or 0 for told in later)
        share = SCATTERED_BY_PARSING if last.optimised is None else SCATTERED
        return ModelProfile(
            signature=last.signature,
            load_s=statistics.median(
                (told.load_s or 0.0) - told.warmed_s + told.batch_s.get(1, 0.0) for told in later
            ),
            batch_s={items: statistics.median(seconds) for items, seconds in took_s.items()},
            memory_bytes=alone_bytes + round(min(share * alone_bytes, MAX_SCATTERED_BYTES)),
            told=last,
            stages_s={items: _each_median(stages) for items, stages in stages_s.items()},
        )


def _sum_s(times: StageTimes) -> float:
    return times.input_s + times.exec_s + times.output_s


def _each_median(stages: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    inputs_s, model_s, outputs_s = (
        statistics.median(column) for column in zip(*stages, strict=True)
    )
    return inputs_s, model_s, outputs_s
