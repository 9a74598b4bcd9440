"""Warm-up of a model on sample inputs, so that no request pays for lazy imports or compilation.

A model that fails on real samples must not serve; a failure on synthetic samples means nothing.
Single items are run until a call takes no longer than the one before, then the largest batch that
is expected to end in time. Samples are run like requests, which checks them and the outputs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from serving import wire
from serving.errors import ModelLoadFailed
from serving.models import Arrays
from serving.replica.execution import Execution
from serving.replica.samples import MADE_UP, Samples
from serving.tensors import arrays
from serving.values import Signature, Tensor

_MAX_RUNS = 5
_SETTLED = 1.25
"""Factor of the expected time within which a call has no first-call cost."""


class WarmUp(NamedTuple):
    """Result of a warm-up."""

    source: str
    """Source of samples: `file`, `model` or `made-up`; `none` if nothing was run."""
    took_s: float
    stages_s: dict[int, tuple[float, float, float]]
    """Number of items -> seconds of input, execution and output in the last batch of that size."""
    failure: str | None = None
    """Reason why synthetic inputs failed or do not exist; the model is not at fault."""

    @property
    def batch_s(self) -> dict[int, float]:
        """Number of items -> seconds that the last batch of that size took."""
        return {items: sum(stages) for items, stages in self.stages_s.items()}

    def as_json(self) -> dict[str, object]:
        """Return the JSON form for LOADED."""
        batch_s = {str(items): round(took_s, 6) for items, took_s in self.batch_s.items()}
        stages_s = {
            str(items): [round(each_s, 6) for each_s in stages]
            for items, stages in self.stages_s.items()
        }
        data: dict[str, object] = {"source": self.source, "warmup_s": round(self.took_s, 6)}
        data |= {"batch_s": batch_s, "stages_s": stages_s}
        return data if self.failure is None else {**data, "failure": self.failure}


class _Failed(Exception):
    """A sample failed; the message comes from the model."""


def warm_up(
    execution: Execution, samples: Samples | str, *, max_items: int, within_s: float
) -> WarmUp:
    """Run a model on samples until its runs get no faster or time is up.

    `execution` is the one that will serve requests. `within_s` starts when the first run ends, which
    always happens; no later run starts that would exceed it.

    Raises:
        ModelLoadFailed: real samples cannot be read, do not fit, or make the model fail.
    """
    if isinstance(samples, str):
        return WarmUp("none", 0.0, {}, samples or None)
    made_up = samples.source == MADE_UP
    run = _WarmupRun(execution.quiet() if made_up else execution, samples, within_s)
    began_s = time.monotonic()
    failure = None
    try:
        run.all_sizes(max_items if execution.signature.is_batched else 1)
    except _Failed as error:
        if not made_up:
            raise ModelLoadFailed(
                samples.where,
                f"it fails on its own samples ({samples.where}): {error}; "
                "replica.warmup_s=0 loads it without running them",
            ) from error
        failure = str(error)
    took_s = time.monotonic() - began_s
    return WarmUp(samples.source, took_s, run.stages_s, failure)


class _WarmupRun:
    def __init__(self, execution: Execution, samples: Samples, within_s: float) -> None:
        self._execution = execution
        self._samples = samples
        self._within_s = within_s
        self.stages_s: dict[int, tuple[float, float, float]] = {}

    def all_sizes(self, max_items: int) -> None:
        """Run single items, then the largest batch that fits into the time."""
        first_s = self._once(self._entries(1))
        until_s = time.monotonic() + self._within_s
        self._settle(1, first_s, until_s)
        one_s = max(sum(self.stages_s[1]), 1e-9)
        items = int(min(max_items, (until_s - time.monotonic()) / one_s))
        if items > 1:
            self._settle(items, items * one_s, until_s)

    def _settle(self, items: int, expected_s: float, until_s: float) -> None:
        entries = self._entries(items)
        for _ in range(_MAX_RUNS):
            if time.monotonic() + expected_s > until_s:
                return
            took_s = self._once(entries)
            if took_s <= expected_s * _SETTLED:
                return
            expected_s = took_s

    def _entries(self, items: int) -> list[wire.InferEntry]:
        return entries_of(self._samples.requests(items), self._execution.signature)

    def _once(self, entries: list[wire.InferEntry]) -> float:
        items = len(entries)
        message = wire.InferMessage(0, 0, 0, 0, entries)
        outcomes, times = self._execution.run(message, time.monotonic_ns())
        for status, _, frame in outcomes.one_by_one():
            if status:
                text = b"".join(frame).decode("utf-8", "replace")
                raise _Failed(text if items == 1 else f"{text} (in a batch of {items} samples)")
        stages_s = (times.input_ns * 1e-9, times.exec_ns * 1e-9, times.output_ns * 1e-9)
        self.stages_s[items] = stages_s
        return sum(stages_s)


def entries_of(requests: Sequence[Arrays], signature: Signature) -> list[wire.InferEntry]:
    """Encode requests as entries of INFER."""
    entries: list[wire.InferEntry] = []
    for request in requests:
        named = [(spec, request[spec.name]) for spec in signature.inputs]
        tensors = [
            Tensor(spec.name, spec.datatype, array.shape, arrays.raw_of(array))
            for spec, array in named
        ]
        frame = b"".join([wire.encode_descriptor(tensors), *[tensor.data for tensor in tensors]])
        entries.append((int(wire.Encoding.TENSORS), 0, 0, memoryview(frame)))
    return entries
