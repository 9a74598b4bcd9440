"""The shipped weights: what they are, and what they get right."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from serving import models, zoo
from serving.values import TensorSpec

IMAGE = TensorSpec(name="image", datatype="UINT8", shape=(-1, 3, 32, 32))
DIGIT = TensorSpec(name="image", datatype="UINT8", shape=(-1, 1, 28, 28))
TOKENS = TensorSpec(name="tokens", datatype="INT32", shape=(-1, -1))
SCORES = TensorSpec(name="scores", datatype="FP32", shape=(-1, 10))
SENTIMENT = TensorSpec(name="scores", datatype="FP32", shape=(-1, 2))
REAL = TensorSpec(name="real", datatype="FP32", shape=(-1,))


class Promise(NamedTuple):
    """What is said of a classifier of the zoo."""

    items: int
    """Of its sample."""
    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    accuracy: float
    """At least, on the sample."""


PROMISES = {
    "gan": Promise(256, IMAGE, (SCORES, REAL), 0.80),
    "linear": Promise(512, IMAGE, (SCORES,), 0.80),
    "mnist": Promise(256, DIGIT, (SCORES,), 0.95),
    "resnet": Promise(512, IMAGE, (SCORES,), 0.90),
    "reviews": Promise(512, TOKENS, (SENTIMENT,), 0.75),
}


@pytest.fixture(scope="module", params=PROMISES)
def card(request):
    if request.param == "linear":
        pytest.importorskip("sklearn")
        pytest.importorskip("skops")
    return zoo.find(request.param)


@pytest.fixture(scope="module")
def model(card):
    return models.load(card.kind, card.path, threads=1)


@pytest.fixture(scope="module")
def sample(card):
    with np.load(card.sample) as arrays:
        return dict(arrays)


def test_the_sample_is_real_items_under_the_models_input_name(card, sample):
    promise = PROMISES[card.name]
    assert set(sample) == {promise.input.name, "labels"}
    items = sample[promise.input.name]
    assert items.dtype.name == promise.input.datatype.lower()
    assert len(items) == len(sample["labels"]) == promise.items
    assert sample["labels"].dtype == np.int64
    assert set(sample["labels"]) == set(range(promise.outputs[0].shape[1]))
    assert len(np.unique(items, axis=0)) >= promise.items - 2  # two reviews may say the same


def test_the_signature_is_inputs_in_and_scores_out(card, model):
    assert nameless(model.signature.inputs) == (PROMISES[card.name].input,)
    assert nameless(model.signature.outputs) == PROMISES[card.name].outputs
    assert {spec.dimension(0) for spec in model.signature.inputs} <= {"batch", ""}


def nameless(specs):
    """Tensors without the names of their dimensions."""
    return tuple(dataclasses.replace(spec, dimensions=()) for spec in specs)


def test_accuracy_on_the_sample_is_near_that_on_the_whole_test_set(card, model, sample):
    # 256 items: the deviation of a share of 0.8 is 0.025, of 0.98 it is 0.009. Deterministic.
    promise = PROMISES[card.name]
    scores = model.predict_batch({promise.input.name: sample[promise.input.name]})["scores"]
    accuracy = float((scores.argmax(axis=1) == sample["labels"]).mean())
    assert accuracy >= promise.accuracy
    assert accuracy == pytest.approx(card.quality["value"], abs=0.05)


def test_scores_are_probabilities(card, model, sample):
    name = PROMISES[card.name].input.name
    scores = model.predict_batch({name: sample[name][:32]})["scores"]
    assert scores.dtype == np.float32
    assert (scores >= 0).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, atol=1e-5)


def test_a_batch_gives_what_its_items_give_alone(card, model, sample):
    name = PROMISES[card.name].input.name
    items = sample[name][:7]
    together = model.predict_batch({name: items})["scores"]
    alone = [model.predict_batch({name: item[np.newaxis]})["scores"][0] for item in items]
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_the_resnets_variants_are_as_accurate_as_they_say(depth):
    """Each its own weights; the deepest is the default one."""
    card = zoo.find("resnet")
    variant = card.variants[f"resnet{depth}"]
    assert (variant.path == card.path) is (depth == 20)
    model = models.load(card.kind, variant.path, threads=1)
    assert nameless(model.signature.outputs) == (SCORES,)
    with np.load(card.sample) as sample:
        scores = model.predict_batch({"image": sample["image"][:256]})["scores"]
        accuracy = float((scores.argmax(axis=1) == sample["labels"][:256]).mean())
    assert accuracy == pytest.approx(variant.accuracy, abs=0.05)


def test_the_gan_takes_held_out_images_for_real():
    """They are drawn like those that it has learnt to tell from its generator's."""
    card = zoo.find("gan")
    model = models.load(card.kind, card.path, threads=1)
    with np.load(card.sample) as sample:
        real = model.predict_batch({"image": sample["image"]})["real"]
    assert ((real >= 0) & (real <= 1)).all()
    assert real.mean() > 0.9


def test_the_resnet_is_as_good_and_as_small_as_promised():
    card = zoo.find("resnet")
    assert card.quality["value"] >= 0.92
    assert card.quality["n"] == 10_000
    assert card.path.stat().st_size < 3 * 2**20
