"""Batches of a model that others wrote, whose items do not lie along axis 0: silero's voice detector.

Its inputs are audio [N, T], a state [2, N, 128] and the sampling rate, a scalar.
"""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import models, wire
from serving.replica.execution import Execution
from serving.replica.warmup import entries_of
from serving.tensors.item_axes import detect_item_axes

pytestmark = pytest.mark.frameworks
FILES = ("silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx")
TOLD = {"item_axis": {"state": 1, "stateN": 1}, "shared": ("sr",)}


def silero(name):
    """A file of the package, which is not imported: that would need torchaudio."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        pytest.skip("silero-vad is installed by make test-frameworks")
    model = models.load("onnx", pathlib.Path(spec.origin).with_name("data") / name, threads=1)
    model.signature = detect_item_axes(model.signature, **TOLD, where=name)
    return model


@pytest.fixture(scope="module", params=FILES)
def execution(request):
    return Execution(silero(request.param), quiet=True)


def audio(rng, items, rate):
    """A request of so many pieces of audio with their states."""
    size = 512 if rate == 16_000 else 256
    return {
        "input": rng.standard_normal((items, size)).astype(np.float32),
        "state": rng.standard_normal((2, items, 128)).astype(np.float32),
        "sr": np.array(rate, np.int64),
    }


def arrays_of(tensors):
    return {one.name: np.frombuffer(one.data, np.float32).reshape(one.shape) for one in tensors}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_batched_answers_equal_single_ones(execution, counts, seed):
    """However requests of one and of several items meet; states come back along their own axis."""
    rng = np.random.default_rng(seed)
    requests = [audio(rng, items, 16_000) for items in counts]
    entries = entries_of(requests, execution.signature)
    together = execution.together(entries)
    for items, entry, answer in zip(counts, entries, together, strict=True):
        alone = arrays_of(execution.together([entry])[0])
        batched = arrays_of(answer)
        assert batched["stateN"].shape == (2, items, 128)
        for name, array in alone.items():
            np.testing.assert_allclose(batched[name], array, atol=1e-4 * np.abs(array).max())


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([8_000, 16_000]), min_size=2, max_size=6))
def test_only_equal_rates_meet_in_a_batch(execution, rates):
    """Each request is answered as alone, whatever the others ask for."""
    rng = np.random.default_rng(0)
    requests = [audio(rng, 1, rate) for rate in rates]
    entries = entries_of(requests, execution.signature)
    outcomes, _ = execution.run(wire.InferMessage(0, 0, 0, 0, entries), 0)
    for entry, (status, _, frame) in zip(entries, outcomes.one_by_one(), strict=True):
        assert not status
        alone = arrays_of(execution.together([entry])[0])
        for name, array in arrays_of(wire.decode_frame(memoryview(b"".join(frame)))).items():
            np.testing.assert_allclose(array, alone[name], atol=1e-4)
