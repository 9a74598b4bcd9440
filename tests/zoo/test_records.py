"""The records of trainings: each tells of the weights that are shipped, and is what their card says."""

from __future__ import annotations

import hashlib
import json
import pathlib

import pytest

from serving import zoo

ROOT = pathlib.Path(__file__).parents[2]
TRAINED = ("gan", "linear", "mnist", "opennmt", "resnet", "reviews")


def record_of(name, suffix=""):
    """What a script has written of a training."""
    return json.loads((ROOT / "zoo" / name / f"training{suffix}.json").read_text(encoding="utf-8"))


def hashes(record):
    """File name -> SHA-256, of a record of one or of several files."""
    return record["files"] if "files" in record else {record["file"]: record["sha256"]}


def test_every_bundled_model_with_weights_of_its_own_has_a_script():
    bundled = {card.name for card in zoo.bundled_specs() if card.path is not None}
    assert bundled == set(TRAINED)
    for name in TRAINED:
        script = (ROOT / "zoo" / name / "train.py").read_text(encoding="utf-8")
        assert f"    python -m zoo.{name}.train" in script


@pytest.mark.parametrize("name", TRAINED)
def test_the_cards_quality_is_what_the_training_script_measured_on_these_very_weights(name):
    card = zoo.find(name)
    record = record_of(name)
    assert card.quality == {key: record[key] for key in ("dataset", "metric", "value", "n")}
    for file, digest in hashes(record).items():
        weights = card.path.with_name(file)
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == digest
        assert weights.stat().st_size < 3 * 2**20
    assert card.kind == "python" or card.path.name in hashes(record)


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_the_resnets_variants_are_what_was_measured(depth):
    """Each has a record of its own."""
    variant = zoo.find("resnet").variants[f"resnet{depth}"]
    record = record_of("resnet", "" if depth == 20 else f"-{depth}")
    assert variant.quality == {key: record[key] for key in ("dataset", "metric", "value", "n")}
    assert hashlib.sha256(variant.path.read_bytes()).hexdigest() == record["sha256"]
