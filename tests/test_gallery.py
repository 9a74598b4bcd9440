"""The gallery of other people's models: its list, what it calls equal answers, its bare loop, and its page."""

from __future__ import annotations

import importlib
import pathlib
import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving.tensors import sizes
from serving.values import Signature, TensorSpec

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
MNIST = pathlib.Path(__file__).resolve().parents[1] / "serving" / "zoo" / "mnist" / "model.onnx"
NAMES = ("gallery_models", "gallery_answers", "gallery_bare", "gallery_page", "result")

tensors = arrays.arrays(
    np.float32,
    (3, 2),
    elements=st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3),
)


@pytest.fixture(name="gallery", scope="module")
def _gallery():
    """The modules by name."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in (*NAMES, "server_process"):
            sys.modules.pop(name, None)


def test_the_list_is_large_enough_and_its_sizes_are_sizes(gallery) -> None:
    """Wheels are pinned, what is told can be told, and files without a wheel are those that can be trained."""
    entries = gallery["gallery_models"].entries()
    assert len({(entry.wheel, entry.file) for entry in entries}) >= 20
    assert len({entry.project for entry in entries}) >= 8
    assert len({entry.domain for entry in entries}) >= 6
    training = (BENCHMARKS / "gallery" / "train.py").read_text(encoding="utf-8")
    for entry in entries:
        sizes.sizes_of([f"{name}={size}" for name, size in entry.shapes.items()])
        assert entry.suffix in gallery["gallery_bare"].RUNTIMES
        if entry.wheel:
            assert all(entry.wheel.partition("=="))
        else:
            assert f'"{entry.file}"' in training


def test_an_unknown_name_is_told_with_those_that_there_are(gallery) -> None:
    with pytest.raises(ValueError, match=r"unknown models nudnet; of magika, .*nudenet"):
        gallery["gallery_models"].entries(["nudnet"])


@given(tensor=tensors, factor=st.floats(1e-3, 1.0))
def test_a_difference_is_relative_to_the_largest_value(
    gallery, tensor: np.ndarray, factor: float
) -> None:
    """Nothing for itself, the error's share of the largest value else, whatever the scale."""
    difference = gallery["gallery_answers"].difference
    assert difference([tensor], [tensor]) == 0.0
    largest = float(np.abs(tensor).max())
    wrong = tensor.astype(np.float64)
    wrong[0, 0] += factor * (largest or 1.0)
    assert difference([wrong], [tensor]) == pytest.approx(factor, rel=1e-6)
    assert difference([tensor[:2]], [tensor]) == np.inf


def test_a_number_that_is_none_is_no_small_difference(gallery) -> None:
    difference = gallery["gallery_answers"].difference
    assert difference([np.array([1.0, np.nan])], [np.array([1.0, 2.0])]) == np.inf
    assert difference([np.array([b"a"], object)], [np.array(["b"], object)]) == np.inf


def test_items_join_along_their_axes_and_what_is_shared_is_sent_once(gallery) -> None:
    """As silero's: `state` has its items along axis 1, `sr` has none."""
    signature = Signature(
        inputs=(
            TensorSpec(name="input", datatype="FP32", shape=(-1, -1)),
            TensorSpec(name="state", datatype="FP32", shape=(2, -1, 4), item_axis=1),
            TensorSpec(name="sr", datatype="INT64", shape=(), item_axis=None),
        ),
        outputs=(),
        unbatched="",
    )
    items = [
        {
            "input": np.full((1, 3), place, np.float32),
            "state": np.full((2, 1, 4), place, np.float32),
            "sr": np.array(16_000),
        }
        for place in range(3)
    ]
    joined = gallery["gallery_answers"].joined(items, signature)
    assert {name: array.shape for name, array in joined.items()} == {
        "input": (3, 3),
        "state": (2, 3, 4),
        "sr": (),
    }
    assert joined["state"][:, 2].min() == 2


def test_answers_that_are_all_alike_are_no_comparison(gallery) -> None:
    """A model of constant weights would hide that a server mixes its requests up."""
    answers = gallery["gallery_answers"]
    signature = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 1)),), outputs=(), unbatched=""
    )
    items = [{"x": np.full((1, 1), place, np.float32)} for place in range(8)]
    right = answers.expected(items, lambda arrays: [2 * arrays["x"]], signature)
    assert right.batches[3][0].tolist() == [[0], [2], [4]]
    with pytest.raises(answers.AllAlike):
        answers.expected(items, lambda arrays: [0 * arrays["x"]], signature)


def test_the_bare_loop_calls_the_model_in_every_process(gallery) -> None:
    """And tells of one that dies of what it is given, instead of waiting for it."""
    bare = gallery["gallery_bare"]
    (spec,) = onnxruntime.InferenceSession(str(MNIST)).get_inputs()
    image = {spec.name: np.zeros((1, *spec.shape[1:]), np.uint8)}
    with bare.loop(MNIST, [image], bare.Form(2, 1)) as loop:
        assert loop.rate(0.05) > 0
    with (
        pytest.raises(RuntimeError, match="died"),
        bare.loop(MNIST, [{spec.name: np.zeros(3)}], bare.Form(1, 1)),
    ):
        pass


def row(**more: Any) -> dict[str, Any]:
    """What is found of a model."""
    answers = {"same": 0.0, "together": 1e-7}
    return {
        "untold": {"code": 2, "lines": ["tune: input 'x', axis 2", "--shape x=3x48x192"]},
        "told": {"code": 0, "lines": []},
        "runtime": "onnxruntime 1.32.0",
        "is_batched": True,
        "unbatched": "",
        "answers": {"REST": answers, "gRPC": answers},
        "are_right": True,
        "study": {
            "outcome": "better",
            "ratio": 0.5,
            "interval": {"low": 0.4, "high": 0.6},
            "seconds": 50,
        },
        "ours_form": "best.yaml",
        "bare_form": "2 x 1",
        "alone_ms": 20.0,
        "rounds": [{"ours": 90.0, "bare": 100.0}],
        "ratio": 0.9,
        "ratios": [0.9],
    } | more


def test_the_target_is_met_by_figures_of_every_row_only(gallery) -> None:
    """A row that ended early, an answer that is wrong, or a slow median misses it, and the page says which."""
    entries = gallery["gallery_models"].entries()
    rows = {entry: row() for entry in entries}
    concluded = gallery["gallery_page"].concluded
    assert concluded(rows).is_met
    assert "better: 0.50 (0.40 to 0.60)" in concluded(rows).page()
    (first, *_) = entries
    early = {"untold": row()["untold"], "problem": "TimeoutError: not done within 300 s"}
    found = concluded({**rows, first: early})
    assert not found.is_met
    assert "not done within 300 s" in found.page()
    found = concluded({**rows, first: row(are_right=False)})
    assert not found.is_met
    assert f"wrong answers: {first.name}" in found.verdict
    assert not concluded({entry: row(ratio=0.8) for entry in entries}).is_met
    quick = {entry: row(ratio=0.1, alone_ms=1.0) for entry in entries[1:]}
    assert concluded({**quick, first: row()}).is_met
