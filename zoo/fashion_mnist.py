"""Fashion-MNIST as the bundled models see it: 32x32 images, three channels; and the shipped sample.

In: the four idx files of the Debian package `dataset-fashion-mnist` (Xiao, Rasul and Vollgraf 2017,
MIT licence).
Out: images uint8 (n, 1, 32, 32), zero-padded from 28x28 to the input size of the CIFAR models, whose
cost is the reason for it; `repeat` makes the three channels; and labels int64 (n,) in 0..9.

Used by training scripts and benchmarks. Run as a program, it rewrites the sample:

    apt-get install dataset-fashion-mnist
    python -m zoo.fashion_mnist
"""

from __future__ import annotations

import gzip
import pathlib

import numpy as np
from numpy.typing import NDArray

from serving import zoo

FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package puts the data."""
SAMPLE = zoo.FOLDER / "samples.npz"
"""The shipped sample: the first `SAMPLE_ITEMS` test images and their labels."""
SAMPLE_ITEMS = 512

_PARTS = {"train": "train", "test": "t10k"}


def load(
    part: str, *, folder: pathlib.Path = FOLDER
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One part of the data set: `train` (60,000 items) or `test` (10,000).

    Returns:
        Images (n, 1, 32, 32), whose channel `repeat` makes three of, and labels (n,).

    Raises:
        FileNotFoundError: the data set is not there.
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
    """The three equal channels of the models' input: (n, 1, 32, 32) -> (n, 3, 32, 32)."""
    return np.repeat(images, 3, axis=1)


def _idx(path: pathlib.Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: magic 0x0000_08nn (nn dimensions), nn big-endian sizes, the data."""
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
