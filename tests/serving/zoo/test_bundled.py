"""The shipped weights: what they are, what they get right, and where their numbers come from."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from typing import NamedTuple

import numpy as np
import pytest

from serving import models, zoo
from serving.values import TensorSpec
from serving.zoo import fashion_mnist

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


def hashes(record):
    """File name -> SHA-256, of a record of one or of several files."""
    return record["files"] if "files" in record else {record["file"]: record["sha256"]}


@pytest.mark.parametrize("name", [*PROMISES, "opennmt"])
def test_the_cards_quality_is_what_the_training_script_measured_on_these_very_weights(name):
    card = zoo.find(name)
    record = json.loads((card.path.parent / "training.json").read_text())
    assert card.quality == {key: record[key] for key in ("dataset", "metric", "value", "n")}
    for file, digest in hashes(record).items():
        weights = card.path.with_name(file)
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == digest
        assert weights.stat().st_size < 3 * 2**20
    assert card.kind == "python" or card.path.name in hashes(record)


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_the_resnets_variants_are_what_was_measured(depth):
    """Each its own weights and its own record; the deepest is the default one."""
    card = zoo.find("resnet")
    variant = card.variants[f"resnet{depth}"]
    suffix = "" if depth == 20 else f"-{depth}"
    record = json.loads((card.path.parent / f"training{suffix}.json").read_text())
    assert variant.quality == {key: record[key] for key in ("dataset", "metric", "value", "n")}
    assert hashlib.sha256(variant.path.read_bytes()).hexdigest() == record["sha256"]
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


@pytest.mark.skipif(not fashion_mnist.FOLDER.is_dir(), reason="needs dataset-fashion-mnist")
def test_the_sample_is_the_first_test_images_of_the_data_set():
    with np.load(zoo.find("resnet").sample) as arrays:
        sample = dict(arrays)
    images, labels = fashion_mnist.load("test")
    count = fashion_mnist.SAMPLE_ITEMS
    np.testing.assert_array_equal(sample["image"], fashion_mnist.repeat(images[:count]))
    np.testing.assert_array_equal(sample["labels"], labels[:count])


def test_idx_files_are_padded_to_32_pixels(tmp_path):
    pixels = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    sizes = np.array(pixels.shape, ">u4").tobytes()
    images_file = tmp_path / "t10k-images-idx3-ubyte.gz"
    images_file.write_bytes(gzip.compress(b"\0\0\x08\x03" + sizes + pixels.tobytes()))
    labels_file = tmp_path / "t10k-labels-idx1-ubyte.gz"
    labels_file.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02\x05\x09"))
    images, labels = fashion_mnist.load("test", folder=tmp_path)
    assert images.shape == (2, 1, 32, 32)
    np.testing.assert_array_equal(images[:, 0, 2:30, 2:30], pixels)
    assert images.sum(dtype=np.int64) == pixels.sum(dtype=np.int64)
    assert labels.tolist() == [5, 9]


def test_a_missing_data_set_names_the_package(tmp_path):
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        fashion_mnist.load("test", folder=tmp_path / "none")
