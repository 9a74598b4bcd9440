"""Broken and adversarial images are told by the disagreement of models.

Three models on the shipped sample of Fashion-MNIST: the bundled linear one and resnet, and the
nearest class mean of the images that are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.models import onnx
from serving.selection.application import Application
from serving.selection.model_output import ModelOutput, Scores
from serving.selection.policy import PolicyState, Query
from serving.selection.query_session import QueryOutcome, QueryResponse, Selector
from serving.zoo import bundled

LABELS = tuple("0123456789")
MODELS = ("linear", "means", "resnet")
SELECTOR = Selector(
    Application(name="fashion", models=MODELS, policy="exp4", suspicious_threshold=0.5)
)
JUDGED = 100
TAUGHT = 200
"""Images behind the judged ones from which the policy learns first."""

Images = NDArray[np.uint8]  # (n, 3, 32, 32)
Rows = NDArray[np.float64]


def softmax(x: Rows) -> Rows:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


class Models:
    """Probabilities of three models."""

    def __init__(self, images: Images, labels: NDArray[np.int64]) -> None:
        with np.load(bundled.FOLDER / "linear" / "model.npz") as stored:
            self.coefficients = stored["coef"].astype(np.float64)
            self._intercept = stored["intercept"]
        self._resnet = onnx.Model(bundled.FOLDER / "resnet" / "model.onnx", threads=1)
        flat = self._flat(images)
        self._means = np.stack([flat[labels == label].mean(axis=0) for label in range(10)])

    @staticmethod
    def _flat(images: Images) -> Rows:
        return images.reshape(len(images), -1).astype(np.float64)

    def __call__(self, images: Images) -> Mapping[str, Rows]:
        flat = self._flat(images)
        distances = ((flat[:, None] - self._means[None]) ** 2).mean(axis=2)
        return {
            "linear": softmax(flat @ self.coefficients.T + self._intercept),
            "means": softmax(-distances / 500),
            "resnet": self._resnet.predict_batch({"image": images})["scores"],
        }


Sample = tuple[Images, NDArray[np.int64], Models, PolicyState]


def decided(rows: Mapping[str, Rows], state: PolicyState) -> list[QueryOutcome]:
    """What an application of the three models answers."""
    found = []
    for number in range(len(rows["linear"])):
        pending = SELECTOR.begin(Query(id=number), state, draw=0.0, now_s=0.0)
        for model in pending.models:
            answer: ModelOutput = Scores(LABELS, tuple(rows[model][number].tolist()))
            pending.record_output(model, answer)
        found.append(pending.finish())
    return found


def results(rows: Mapping[str, Rows], state: PolicyState) -> list[QueryResponse]:
    return [each.result for each in decided(rows, state)]


@pytest.fixture(scope="module")
def sample() -> Sample:
    with np.load(bundled.FOLDER / "samples.npz") as stored:
        images, labels = stored["image"], stored["labels"]
    models = Models(images[JUDGED:], labels[JUDGED:])
    taught = slice(JUDGED, JUDGED + TAUGHT)
    state = SELECTOR.initial()
    for finished, label in zip(decided(models(images[taught]), state), labels[taught], strict=True):
        state = SELECTOR.policy.observe(state, finished.decision, str(label))
    return images[:JUDGED], labels[:JUDGED], models, state


def share(found: list[QueryResponse]) -> float:
    return sum(each.is_suspicious for each in found) / len(found)


def trusted(found: list[QueryResponse]) -> list[QueryResponse]:
    """What is given without a mark by an application that asks for a confidence of 0.8."""
    return [each for each in found if each.confidence >= 0.8 and not each.is_suspicious]


def confidence(found: list[QueryResponse]) -> float:
    return sum(each.confidence for each in found) / len(found)


def test_perturbed_images_are_suspicious_and_clean_ones_are_not(
    sample: Sample,
) -> None:
    """Noise: most are marked, few are given. The seed is fixed: 14 of 100 clean, 83 noisy."""
    images, labels, models, state = sample
    clean = results(models(images), state)
    right = sum(r.output == str(label) for r, label in zip(clean, labels, strict=True))
    assert right > 0.85 * JUDGED
    noise = np.random.default_rng(1).normal(scale=60, size=images.shape)
    noisy = results(models((images + noise).clip(0, 255).astype(np.uint8)), state)
    assert share(clean) < 0.25
    assert share(noisy) > 0.6
    assert confidence(noisy) < confidence(clean) - 0.15
    assert len(trusted(noisy)) < 10
    assert len(trusted(clean)) > 60


def test_an_image_made_to_deceive_one_model_is_not_answered_with_its_confidence(
    sample: Sample,
) -> None:
    """Steps along the linear model's gradient fool it; the others contradict."""
    images, labels, models, state = sample
    flat = images.reshape(JUDGED, -1).astype(np.float64)
    scores = flat @ models.coefficients.T
    scores[np.arange(JUDGED), labels] = -np.inf
    towards = models.coefficients[scores.argmax(axis=1)] - models.coefficients[labels]
    made = (flat + 40 * np.sign(towards)).clip(0, 255).astype(np.uint8).reshape(images.shape)
    rows = models(made)
    fooled = rows["linear"].argmax(axis=1) != labels
    assert fooled.mean() > 0.9
    assert rows["linear"].max(axis=1).mean() > 0.9
    found = results(rows, state)
    assert share(found) > 0.6
    assert len(trusted(found)) < 15
