"""Trains the bundled `linear`: writes `model.npz` into the package, `training.json` beside this file.

Multinomial logistic regression on the bytes of 3x32x32 Fashion-MNIST images, as for `resnet`. The
fit's division by 255 is folded into the coefficients. Shipped as arrays (see
`serving/models/sklearn.py`): stored scikit-learn objects load only in their version.

    apt-get install dataset-fashion-mnist
    pip install scikit-learn threadpoolctl numpy pyyaml
    python -m zoo.linear.train

About two minutes on one core. Deterministic: L-BFGS starts from zero and stops (with a warning)
after fixed iterations; three times as many gain 0.1 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import time

import numpy as np
import sklearn
import threadpoolctl
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from serving.models.sklearn import Model
from zoo import fashion_mnist, places

PIXEL_MAX = 255.0


def accuracy(path: pathlib.Path, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    """Return the shipped file's accuracy, through the model kind that serves it."""
    model = Model(path, threads=1)
    right = 0
    for start in range(0, len(labels), 100):
        batch = fashion_mnist.repeat(images[start : start + 100])
        scores = model.predict_batch({"image": batch})["scores"]
        right += int((scores.argmax(axis=1) == labels[start : start + 100]).sum())
    return right / len(labels)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled linear model.")
    parser.add_argument("--iterations", type=int, default=100, help="at most, of L-BFGS")
    parser.add_argument("--inverse-penalty", type=float, default=0.01, help="C of the l2 penalty")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=pathlib.Path, default=fashion_mnist.FOLDER)
    return places.parsed(parser, "linear")


def main() -> None:
    """Fit, store, measure."""
    options = parse()
    images, labels = fashion_mnist.load("train", folder=options.data)
    pixels = fashion_mnist.repeat(images).reshape(len(images), -1).astype(np.float32) / PIXEL_MAX
    estimator = LogisticRegression(C=options.inverse_penalty, max_iter=options.iterations)
    started_s = time.monotonic()
    with threadpoolctl.threadpool_limits(limits=options.threads):
        estimator.fit(pixels, labels)
    fitted_s = time.monotonic() - started_s

    weights = options.out / "model.npz"
    np.savez_compressed(
        weights,
        coef=(estimator.coef_ / PIXEL_MAX).astype(np.float32),
        intercept=estimator.intercept_.astype(np.float32),
        classes=estimator.classes_,
        input_name="image",
        input_datatype="UINT8",
        input_shape=np.array([3, 32, 32]),
    )
    test_images, test_labels = fashion_mnist.load("test", folder=options.data)
    record = {
        "dataset": "Fashion-MNIST test",
        "metric": "accuracy",
        "value": accuracy(weights, test_images, test_labels),
        "n": len(test_labels),
        "file": weights.name,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "settings": {
            name: getattr(options, name) for name in ("iterations", "inverse_penalty", "threads")
        },
        "versions": {module.__name__: module.__version__ for module in (sklearn, np)},
        "iterations": int(estimator.n_iter_.max()),
        "seconds": fitted_s,
    }
    (options.record / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
