"""Fashion-MNIST for the bundled models: 32x32 images, three channels; and the shipped sample.

From the Debian package `dataset-fashion-mnist` (Xiao, Rasul and Vollgraf 2017, MIT licence). Images
are zero-padded from 28x28 to CIFAR's size, for its models' cost. For training; as a program it
rewrites the sample:

    apt-get install dataset-fashion-mnist
    python -m zoo.fashion_mnist
"""

from __future__ import annotations

import gzip
import pathlib

import numpy as np
from numpy.typing import NDArray

from serving.zoo import bundled

FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
"""Folder of the Debian package."""
SAMPLE = bundled.FOLDER / "samples.npz"
"""Shipped sample: the first `SAMPLE_ITEMS` test images and labels."""
SAMPLE_ITEMS = 512

_PARTS = {"train": "train", "test": "t10k"}


def load(
    part: str, *, folder: pathlib.Path = FOLDER
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Load `train` (60,000 items) or `test` (10,000).

    Returns:
        Images (n, 1, 32, 32) for `repeat`, labels (n,) in 0..9.

    Raises:
        FileNotFoundError: the data set is missing.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder {folder}; install the Debian package dataset-fashion-mnist, or name the folder of its idx files"
        )
    pixels = _idx(folder / f"{_PARTS[part]}-images-idx3-ubyte.gz")
    labels = _idx(folder / f"{_PARTS[part]}-labels-idx1-ubyte.gz")
    images = np.pad(pixels[:, np.newaxis], ((0, 0), (0, 0), (2, 2), (2, 2)))
    return images, labels.astype(np.int64)


def repeat(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repeat the channel: (n, 1, 32, 32) -> (n, 3, 32, 32)."""
    return np.repeat(images, 3, axis=1)


def _idx(path: pathlib.Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes: magic 0x0000_08nn, nn big-endian sizes, data."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def main() -> None:
    """Write the sample."""
    images, labels = load("test")
    np.savez_compressed(SAMPLE, image=repeat(images[:SAMPLE_ITEMS]), labels=labels[:SAMPLE_ITEMS])


if __name__ == "__main__":
    main()
