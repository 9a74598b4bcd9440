"""Fashion-MNIST as the training scripts read it, and the sample that is made of it."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from serving import zoo
from zoo import fashion_mnist


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
