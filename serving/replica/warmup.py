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

import pathlib
import time
from typing import NamedTuple

from serving.errors import ModelLoadFailed
from serving.models import Arrays, LoadedModel
from serving.replica import arrays, wire
from serving.replica.execution import Execution
from serving.replica.samples import Samples, samples_of
from serving.values import Signature, Tensor

_MOST_RUNS = 5
"""Of one size: a call that is ever slower than the one before tells nothing about the next."""
_SETTLED = 1.25
"""A call of at most so many times what was expected has no first call's cost in it."""


class Wanted(NamedTuple):
    """How a model is to be warmed up."""

    samples: pathlib.Path | None
    """npz of real inputs."""
    max_items: int
    """Items of the largest batch that may come."""
    within_s: float
    """Time after the first run, which is made in any case: one that is expected to end later is not begun.

    0: nothing is run.
    """


class WarmUp(NamedTuple):
    """What was run."""

    source: str
    """Of the samples: `file`, `model` or `zeros`; `none`: nothing was run."""
    took_s: float
    batch_s: dict[int, float]
    """Items of a batch -> seconds of its last run: inputs, execution and outputs."""
    stages_s: dict[int, tuple[float, float, float]]
    """Items of a batch -> the same, stage by stage."""
    failure: str | None = None
    """Why made-up inputs failed, which is no fault of the model."""

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


_NOTHING = WarmUp("none", 0.0, {}, {})


class _Failed(Exception):
    """A run in which a sample failed; the text is the model's."""


def warm_up(model: LoadedModel, execution: Execution, wanted: Wanted) -> WarmUp:
    """Run a model on samples, as long as that pays and is allowed.

    Args:
        model: loaded, and not run by a request yet.
        execution: of this model; requests will use it.
        wanted: samples, sizes, time.

    Raises:
        ModelLoadFailed: real samples cannot be read, do not fit, or make the model fail.
        Exception: whatever the model's own `sample_inputs` raises.
    """
    samples = samples_of(model, wanted.samples) if wanted.within_s else None
    if samples is None:
        return _NOTHING
    made_up = samples.source == "zeros"
    trial = Execution(model, quiet=True) if made_up else execution
    run = _Run(trial, samples, wanted.within_s)
    began_s = time.monotonic()
    failure = None
    try:
        run.all_sizes(wanted.max_items if model.signature.is_batched else 1)
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
        return _requests(self._samples.rows(items), items, self._execution.signature)

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


def _requests(samples: Arrays, items: int, signature: Signature) -> list[wire.InferEntry]:
    """A batch of requests of one item each, as they come over the wire; few samples come again and again."""
    fixed = [spec.shape[0] for spec in signature.inputs if spec.shape and spec.shape[0] >= 0]
    rows = fixed[0] if fixed else 1
    frames: list[memoryview] = []
    for index in range(items):
        tensors = []
        data = []
        for spec in signature.inputs:
            array = samples[spec.name]
            if array.ndim:
                places = [place % len(array) for place in range(index * rows, (index + 1) * rows)]
                array = array[places]
            raw = arrays.raw_of(array)
            tensors.append(Tensor(spec.name, spec.datatype, array.shape, raw))
            data.append(raw)
        frames.append(memoryview(b"".join([wire.encode_descriptor(tensors), *data])))
    return [(int(wire.Encoding.TENSORS), 0, 0, frame) for frame in frames]
