"""Builder of the bundled `resnet50`: ResNet-50 for ImageNet, with weights from a seed.

He et al. (2015, arXiv:1512.03385, table 1), stride in the 3x3 convolutions as in torchvision.
Outputs are meaningless, but cost as much as a trained network's. Its 100 MB are built on first use,
in about a second, in `$XDG_CACHE_HOME/luthier/zoo/` or `~/.cache/luthier/zoo/`.

NumPy's PCG64 has a fixed stream, so every machine writes the same bytes; each start checks
`SHA256`. Maps `image` UINT8 [batch, 3, 224, 224] to `scores` FP32 [batch, 1000] with softmax.

    python -m serving.zoo.resnet50.build        # prints the file's path
"""

from __future__ import annotations

import hashlib
import pathlib

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed
from serving.zoo import bundled, onnx_file

SEED = 50
BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
CLASSES = 1000
BRANCH = 0.25
FILE_NAME = "model-1.onnx"
"""File name, numbered by weights because versions of Luthier may share a cache."""
BYTES = 102_136_888
SHA256 = "ba6d07dc6f2fe0689c3283a0630b6f7e2a62cc343aeab45e461f462317aa3ae5"


def weights() -> pathlib.Path:
    """Return the weights file, rebuilt if missing or invalid.

    Raises:
        OSError: the cache is not writable.
        ModelLoadFailed: the file built has another hash.
    """
    path = bundled.built_folder("resnet50") / FILE_NAME
    if path.is_file() and path.stat().st_size == BYTES and _digest(path) == SHA256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = build_graph().save(path)
    if digest != SHA256:
        path.unlink()
        raise ModelLoadFailed(
            "resnet50",
            f"its weights came out as {digest[:12]}..., expected {SHA256[:12]}... "
            f"(NumPy {np.__version__}); please report it",
        )
    return path


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_graph() -> onnx_file.Graph:
    """Build the network."""
    graph = onnx_file.Graph("resnet50")
    random = np.random.PCG64(SEED)

    def uniform(shape: tuple[int, ...], fan_in: int, scale: float) -> NDArray[np.float32]:
        """Return numbers of variance 2 / fan_in (He et al. 2015, arXiv:1502.01852) * scale**2."""
        size = int(np.prod(shape))
        bits = random.random_raw(size) >> np.uint64(40)  # 24 bits are exact in float32
        numbers = bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
        return (numbers * np.float32(scale * (6.0 / fan_in) ** 0.5)).reshape(shape)

    def convolution(x: str, before: int, after: int, size: int, stride: int, scale: float) -> str:
        name = f"conv_{before}_{after}_{size}_{x}"
        shape = (after, before, size, size)
        kernel = graph.weight(f"{name}_weight", uniform(shape, before * size * size, scale))
        bias = graph.weight(f"{name}_bias", np.zeros(after, np.float32))
        pads = [size // 2] * 4
        return graph.add("Conv", x, kernel, bias, strides=[stride] * 2, pads=pads)

    image = graph.input("image", "uint8", ["batch", 3, 224, 224])
    x = graph.add("Cast", image, to=onnx_file.DTYPES["float32"])
    x = graph.add("Mul", x, graph.weight("scale", np.float32(1 / 127.5)))
    x = graph.add("Sub", x, graph.weight("one", np.float32(1)))
    x = graph.add("Relu", convolution(x, 3, 64, 7, 2, 1.0))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks in zip(WIDTHS, BLOCKS, strict=True):
        for block in range(blocks):
            stride = 2 if block == 0 and width > WIDTHS[0] else 1
            inner = graph.add("Relu", convolution(x, channels, width, 1, 1, 1.0))
            inner = graph.add("Relu", convolution(inner, width, width, 3, stride, 1.0))
            inner = convolution(inner, width, width * EXPANSION, 1, 1, BRANCH)
            if block == 0:
                x = convolution(x, channels, width * EXPANSION, 1, stride, 0.5**0.5)
                channels = width * EXPANSION
            x = graph.add("Relu", graph.add("Add", inner, x))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    head = graph.weight("head_weight", uniform((CLASSES, channels), channels, 0.5))
    x = graph.add(
        "Gemm", x, head, graph.weight("head_bias", np.zeros(CLASSES, np.float32)), transB=1
    )
    graph.add("Softmax", x, axis=1, output="scores")
    graph.output("scores", "float32", ["batch", CLASSES])
    return graph


if __name__ == "__main__":
    print(weights())
