"""A model is run on sample inputs before it takes traffic: no first call's cost is left for a request.

Runtimes allocate, compile and import lazily; what a first call costs beside its work is paid here. A model
that fails on real samples must not take traffic; that made-up ones make no sense to a model says nothing
about it.

Single items are run until a call takes no longer than the one before; then the largest batch that the
gateway will send, as far as the time allows: what is expected to end too late is not begun. The first
call does not count, for it tells nothing about the next. The samples
take the way that requests take, so that they, and the model's answers, are held against the signature here.

In: a model, its execution, what is wanted. Out: what was run, and how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from serving.errors import ModelLoadFailed
from serving.models import Arrays
from serving.replica import arrays, wire
from serving.replica.execution import Execution
from serving.replica.samples import MADE_UP, Samples
from serving.values import Signature, Tensor

_MOST_RUNS = 5
"""Of one size: a call that is ever slower than the one before tells nothing about the next."""
_SETTLED = 1.25
"""A call of at most so many times what was expected has no first call's cost in it."""


class WarmUp(NamedTuple):
    """What was run."""

    source: str
    """Of the samples: `file`, `model` or `made-up`; `none`: nothing was run."""
    took_s: float
    batch_s: dict[int, float]
    """Items of a batch -> seconds of its last run: inputs, execution and outputs."""
    stages_s: dict[int, tuple[float, float, float]]
    """Items of a batch -> the same, stage by stage."""
    failure: str | None = None
    """Why made-up inputs failed, or cannot be made up, which is no fault of the model."""

    def as_json(self) -> dict[str, object]:
        """The form that LOADED carries."""
        batch_s = {str(items): round(took_s, 6) for items, took_s in self.batch_s.items()}
        stages_s = {
            str(items): [round(each_s, 6) for each_s in stages]
            for items, stages in self.stages_s.items()
        }
        data: dict[str, object] = {"source": self.source, "warmup_s": round(self.took_s, 6)}
        data |= {"batch_s": batch_s, "stages_s": stages_s}
        return data if self.failure is None else {**data, "failure": self.failure}


class _Failed(Exception):
    """A run in which a sample failed; the text is the model's."""


def warm_up(
    execution: Execution, samples: Samples | str, *, max_items: int, within_s: float
) -> WarmUp:
    """Run a model on samples, as long as that pays and is allowed.

    Args:
        execution: of a model that was not run by a request yet; requests will use it.
        samples: what it is run on, or why there is nothing.
        max_items: items of the largest batch that may come.
        within_s: time after the first run, which is made in any case: one that is expected to end later is not begun.

    Raises:
        ModelLoadFailed: real samples cannot be read, do not fit, or make the model fail.
    """
    if isinstance(samples, str):
        return WarmUp("none", 0.0, {}, {}, samples or None)
    made_up = samples.source == MADE_UP
    run = _Run(execution.quiet() if made_up else execution, samples, within_s)
    began_s = time.monotonic()
    failure = None
    try:
        run.all_sizes(max_items if execution.signature.is_batched else 1)
    except _Failed as error:
        if not made_up:
            raise ModelLoadFailed(
                samples.where,
                f"it fails on its own samples ({samples.where}): {error}; "
                "replica.warmup_s=0 loads it without them",
            ) from error
        failure = str(error)
    took_s = time.monotonic() - began_s
    return WarmUp(samples.source, took_s, run.batch_s, run.stages_s, failure)


class _Run:
    """Batches of samples, within a time."""

    def __init__(self, execution: Execution, samples: Samples, within_s: float) -> None:
        self._execution = execution
        self._samples = samples
        self._within_s = within_s
        self.batch_s: dict[int, float] = {}
        self.stages_s: dict[int, tuple[float, float, float]] = {}

    def all_sizes(self, max_items: int) -> None:
        """One item, then as many as are wanted and can be had in time.

        Raises:
            _Failed: a sample failed.
        """
        first_s = self._once(self._entries(1))
        until_s = time.monotonic() + self._within_s
        self._settle(1, first_s, until_s)
        one_s = max(self.batch_s[1], 1e-9)
        items = int(min(max_items, (until_s - time.monotonic()) / one_s))
        if items > 1:
            self._settle(items, items * one_s, until_s)

    def _settle(self, items: int, expected_s: float, until_s: float) -> None:
        """Run a batch, as long as the next run is expected in time, until it takes no longer than expected.

        Raises:
            _Failed: a sample failed.
        """
        entries = self._entries(items)
        for _ in range(_MOST_RUNS):
            if time.monotonic() + expected_s > until_s:
                return
            took_s = self._once(entries)
            if took_s <= expected_s * _SETTLED:
                return
            expected_s = took_s

    def _entries(self, items: int) -> list[wire.InferEntry]:
        return entries_of(self._samples.requests(items), self._execution.signature)

    def _once(self, entries: list[wire.InferEntry]) -> float:
        """Run a batch; returns the seconds that it took."""
        items = len(entries)
        message = wire.InferMessage(0, 0, 0, 0, entries)
        outcomes, times = self._execution.run(message, time.monotonic_ns())
        for status, _, frame in outcomes.one_by_one():
            if status:
                text = b"".join(frame).decode("utf-8", "replace")
                raise _Failed(text if items == 1 else f"{text} (in a batch of {items} samples)")
        stages_s = (times.input_ns * 1e-9, times.exec_ns * 1e-9, times.output_ns * 1e-9)
        self.stages_s[items] = stages_s
        took_s = self.batch_s[items] = sum(stages_s)
        return took_s


def entries_of(requests: Sequence[Arrays], signature: Signature) -> list[wire.InferEntry]:
    """Requests as they come over the wire."""
    frames: list[memoryview] = []
    for request in requests:
        raws = [arrays.raw_of(request[spec.name]) for spec in signature.inputs]
        tensors = [
            Tensor(spec.name, spec.datatype, request[spec.name].shape, raw)
            for spec, raw in zip(signature.inputs, raws, strict=True)
        ]
        frames.append(memoryview(b"".join([wire.encode_descriptor(tensors), *raws])))
    return [(int(wire.Encoding.TENSORS), 0, 0, frame) for frame in frames]
