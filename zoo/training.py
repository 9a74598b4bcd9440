"""What the training scripts of bundled models share: the record that they keep, and how they measure.

It needs PyTorch. The figures of a record are measured on the file as it is shipped, through the container that
serves it.
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
"""Items of a batch while measuring."""


def shifted(images: torch.Tensor, rng: torch.Generator | None, *, pixels: int) -> torch.Tensor:
    """Shift each image by up to `pixels` both ways, zeros coming in.

    Args:
        images: (n, channels, h, w).
        rng: the source of randomness.
        pixels: farthest shift.

    Returns:
        (n, channels, h, w).
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
    """Share of items whose highest score is the label's."""
    model = onnx.Model(path, threads=1)
    right = 0
    for start in range(0, len(labels), BATCH):
        scores = model.predict_batch({name: inputs[start : start + BATCH]})["scores"]
        right += int((scores.argmax(axis=1) == labels[start : start + BATCH]).sum())
    return right / len(labels)


def difference(
    path: pathlib.Path, network: torch.nn.Module, name: str, inputs: NDArray[Any]
) -> float:
    """Largest difference between the file's scores and the softmax of the network's, batches of 1 and of 7."""
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
    """Write `training.json`: what was measured, on which files, and what it takes to make them again.

    Args:
        folder: where to.
        quality: what the model's card says as well.
        files: of the model.
        difference: largest one of the files' answers from PyTorch's.
        options: of the script; folders are left out.
        versions: of packages beside PyTorch, ONNX Runtime and NumPy.
        losses: one for each epoch.
        seconds: that it took.
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
