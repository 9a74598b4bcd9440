"""Shared parts of the training scripts: measurement and record. Needs PyTorch.

The shipped file is measured through the model kind that serves it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from serving.models import onnx

BATCH = 100
"""Items per batch while measuring."""


def shifted(images: torch.Tensor, rng: torch.Generator | None, *, pixels: int) -> torch.Tensor:
    """Shift each image by up to `pixels` both ways, filling with zeros.

    Args:
        images: (n, channels, h, w), like the result.
    """
    count, _, height, width = images.shape
    places = 2 * pixels + 1
    top = torch.randint(0, places, (count,), generator=rng)
    left = torch.randint(0, places, (count,), generator=rng)
    windows = functional.pad(images, (pixels,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count), :, top, left]


def accuracy(
    path: pathlib.Path, name: str, inputs: NDArray[Any], labels: NDArray[np.int64]
) -> float:
    """Return the share of items whose highest score is the label's."""
    model = onnx.Model(path, threads=1)
    right = 0
    for start in range(0, len(labels), BATCH):
        scores = model.predict_batch({name: inputs[start : start + BATCH]})["scores"]
        right += int((scores.argmax(axis=1) == labels[start : start + BATCH]).sum())
    return right / len(labels)


def difference(
    path: pathlib.Path, network: torch.nn.Module, name: str, inputs: NDArray[Any]
) -> float:
    """Return the largest difference between file and network, in batches of 1 and 7."""
    model = onnx.Model(path, threads=1)
    largest = 0.0
    for count in (1, 7):
        with torch.inference_mode():
            expected = functional.softmax(network(torch.from_numpy(inputs[:count])), dim=1).numpy()
        given = model.predict_batch({name: inputs[:count]})["scores"]
        largest = max(largest, float(np.abs(given - expected).max()))
    return largest


def write_record(
    folder: pathlib.Path,
    *,
    quality: Mapping[str, Any],
    files: Sequence[pathlib.Path],
    difference: float,
    options: argparse.Namespace,
    versions: Mapping[str, str],
    losses: Sequence[float],
    seconds: float,
) -> None:
    """Write `training.json`: metrics, file hashes, and what a repetition needs.

    Args:
        quality: as in the spec.
        difference: largest from PyTorch.
        options: of the script, without paths.
        versions: besides PyTorch, ONNX Runtime, NumPy.
        losses: per epoch.
    """
    record = {
        **quality,
        "largest_difference_from_torch": difference,
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "settings": {
            name: value
            for name, value in vars(options).items()
            if not isinstance(value, pathlib.Path)
        },
        "versions": {
            "torch": torch.__version__,
            "onnxruntime": importlib.metadata.version("onnxruntime"),
            "numpy": np.__version__,
            **versions,
        },
        "losses": [round(loss, 4) for loss in losses],
        "seconds": round(seconds, 1),
    }
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
