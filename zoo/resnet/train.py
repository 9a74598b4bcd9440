"""Trains the bundled `resnet`: writes `model.onnx` into the package, `training.json` beside this file.

ResNet-20 for CIFAR-10 (He et al. 2015, arXiv:1512.03385, section 4.2: n = 3, 16/32/64 channels,
zero-padded identity shortcuts, "option A"), 0.27 million parameters, 41 million multiply-adds per
image, on Fashion-MNIST. `--depth 8 --epochs 6` and `--depth 14 --epochs 5` (n = 1, 2) trained the
variants `model-8.onnx` and `model-14.onnx`.

One-cycle SGD (Smith and Topin 2017, arXiv:1708.07120), random shifts of up to two pixels, flips,
label smoothing. The test set is never selected on: the last epoch ships. Files are written after
every epoch; `--checkpoint` resumes.

Maps `image` UINT8 [batch, 3, 32, 32] to `scores` FP32 [batch, 10], normalisation and softmax
included, batch norms folded.

    apt-get install dataset-fashion-mnist
    pip install torch onnx onnxruntime numpy pyyaml
    python -m zoo.resnet.train

About 40 minutes on one core of a 2.5 GHz Cascade Lake, 10 to 15 for a variant. The seed fixes order
and augmentation; the last digits also depend on recorded threads and versions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import time

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from zoo import fashion_mnist, places

MEAN = 0.2860
STD = 0.3530
"""Of the unpadded training pixels in [0, 1]."""
SCALE = 1.0 / (255.0 * STD)
SHIFT = MEAN / STD
"""byte * SCALE - SHIFT has mean 0 and deviation 1."""
CLASSES = 10
SHIFT_PIXELS = 2
DEPTHS = (8, 14, 20)
OPSET = 17
IR_VERSION = 8
"""Readable by ONNX Runtime 1.11 (2022) and later."""


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels_out)
        self.stride = stride
        self.missing = channels_out - channels_in
        # Blocks start as the identity, so the schedule can begin at a high rate.
        nn.init.zeros_(self.second_norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels_in, h, w) -> (n, channels_out, h / stride, w / stride)."""
        inner = functional.relu(self.first_norm(self.first(x)))
        inner = self.second_norm(self.second(inner))
        if self.missing:
            # Pooling of size 1 takes every second pixel, faster in ONNX Runtime than a strided
            # slice.
            x = functional.max_pool2d(x, 1, self.stride)
            x = functional.pad(x, (0, 0, 0, 0, 0, self.missing))
        return functional.relu(inner + x)


class ResNet(nn.Module):
    """Normalisation, residual network of 6n + 2 layers, logits."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 16, 3, 1, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        ]
        channels = 16
        for width in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                layers.append(Block(channels, width, stride=2 if width > channels else 1))
                channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(n, 3, 32, 32) pixels in 0..255 -> (n, 10) logits."""
        x = image.float() * SCALE - SHIFT
        x = x.contiguous(memory_format=torch.channels_last) if self.training else x
        return self.head(self.features(x).mean(dim=(2, 3)))


def augment(images: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Shift images by up to `SHIFT_PIXELS` both ways and flip half of them.

    Args:
        images: uint8 (n, 1, 32, 32), like the result.
    """
    count, _, height, width = images.shape
    places = 2 * SHIFT_PIXELS + 1
    top = torch.randint(0, places, (count,), generator=rng)
    left = torch.randint(0, places, (count,), generator=rng)
    flipped = torch.rand(count, generator=rng) < 0.5
    padded = functional.pad(images, (SHIFT_PIXELS,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # view (n, 1, places, places, h, w)
    shifted = windows[torch.arange(count), :, top, left]
    return torch.where(flipped[:, None, None, None], shifted.flip(3), shifted)


def fold(
    convolution: nn.Conv2d, norm: nn.BatchNorm2d
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights and bias of one convolution equal to both layers in evaluation."""
    with torch.no_grad():
        scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
        weight = convolution.weight.double() * scale[:, None, None, None]
        bias = norm.bias.double() - norm.running_mean.double() * scale
    return weight.float().contiguous().numpy(), bias.float().numpy()


class Graph:
    """ONNX graph builder; `add` appends a node and returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: NDArray[np.generic]) -> str:
        """Store a constant tensor."""
        self.weights.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: object
    ) -> str:
        """Append a node."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        output = output or name
        self.nodes.append(
            onnx.helper.make_node(operator, inputs, [output], name=name, **attributes)
        )
        return output

    def convolve(self, x: str, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> str:
        """Append a 3x3 convolution with its batch norm folded in."""
        weight, bias = fold(convolution, norm)
        place = len(self.nodes)
        return self.add(
            "Conv",
            x,
            self.weight(f"weight_{place}", weight),
            self.weight(f"bias_{place}", bias),
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=list(convolution.stride),
        )


def as_onnx(network: ResNet, *, name: str) -> onnx.ModelProto:
    """Return the network with softmax, built without an exporter."""
    graph = Graph()
    x = graph.add("Cast", "image", to=onnx.TensorProto.FLOAT)
    x = graph.add("Mul", x, graph.weight("scale", np.float32(SCALE)))
    x = graph.add("Sub", x, graph.weight("shift", np.float32(SHIFT)))
    x = graph.add("Relu", graph.convolve(x, network.features[0], network.features[1]))
    for block in network.features[3:]:
        inner = graph.add("Relu", graph.convolve(x, block.first, block.first_norm))
        inner = graph.convolve(inner, block.second, block.second_norm)
        if block.missing:
            x = graph.add("MaxPool", x, kernel_shape=[1, 1], strides=[block.stride] * 2)
            pads = graph.weight(
                f"pads_{len(graph.nodes)}", np.array([0] * 5 + [block.missing, 0, 0], np.int64)
            )
            x = graph.add("Pad", x, pads)
        x = graph.add("Relu", graph.add("Add", inner, x))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    weight = graph.weight("head_weight", network.head.weight.detach().numpy())
    bias = graph.weight("head_bias", network.head.bias.detach().numpy())
    x = graph.add("Gemm", x, weight, bias, transB=1)
    graph.add("Softmax", x, axis=1, output="scores")
    image = onnx.helper.make_tensor_value_info(
        "image", onnx.TensorProto.UINT8, ["batch", 3, 32, 32]
    )
    scores = onnx.helper.make_tensor_value_info(
        "scores", onnx.TensorProto.FLOAT, ["batch", CLASSES]
    )
    return onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, name, [image], [scores], graph.weights),
        producer_name="luthier",
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )


def export(network: ResNet, path: pathlib.Path, *, name: str) -> None:
    """Write the network to an ONNX file atomically."""
    model = as_onnx(network, name=name)
    onnx.checker.check_model(model, full_check=True)
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(model.SerializeToString())
    unfinished.replace(path)


def accuracy(
    path: pathlib.Path, images: NDArray[np.uint8], labels: NDArray[np.int64], *, threads: int
) -> float:
    """Return the shipped file's accuracy, through ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    right = 0
    for start in range(0, len(labels), 100):
        (scores,) = session.run(
            ["scores"], {"image": fashion_mnist.repeat(images[start : start + 100])}
        )
        right += int((scores.argmax(axis=1) == labels[start : start + 100]).sum())
    return right / len(labels)


def difference(network: ResNet, path: pathlib.Path, images: NDArray[np.uint8]) -> float:
    """Return the largest difference of file and torch, in batches of 1 and 7."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    network.eval()
    largest = 0.0
    for count in (1, 7):
        batch = fashion_mnist.repeat(images[:count])
        with torch.inference_mode():
            expected = functional.softmax(network(torch.from_numpy(batch)), dim=1).numpy()
        (given,) = session.run(["scores"], {"image": batch})
        largest = max(largest, float(np.abs(given - expected).max()))
    return largest


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled resnet.")
    parser.add_argument("--depth", type=int, default=20, choices=DEPTHS, help="layers")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch", type=int, default=256, help="images per step")
    parser.add_argument("--rate", type=float, default=0.3, help="highest learning rate")
    parser.add_argument("--decay", type=float, default=5e-4, help="weight decay")
    parser.add_argument("--smoothing", type=float, default=0.1, help="label smoothing")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=pathlib.Path, default=fashion_mnist.FOLDER)
    parser.add_argument(
        "--checkpoint", type=pathlib.Path, help="file to go on from, written after every epoch"
    )
    return places.parsed(parser, "resnet")


def main() -> None:
    """Train, export, measure."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = torch.Generator().manual_seed(options.seed)
    images, labels = (
        torch.from_numpy(array) for array in fashion_mnist.load("train", folder=options.data)
    )
    test_images, test_labels = fashion_mnist.load("test", folder=options.data)

    suffix = "" if options.depth == max(DEPTHS) else f"-{options.depth}"
    network = ResNet(options.depth).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=options.rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=options.decay,
    )
    steps = len(labels) // options.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=options.rate,
        total_steps=options.epochs * steps,
        pct_start=0.25,
        div_factor=10.0,
        final_div_factor=1000.0,
        cycle_momentum=False,
    )
    history: list[dict[str, float]] = []
    first = 0
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        rng.set_state(saved["rng"])
        history = saved["history"]
        first = len(history)

    for epoch in range(first, options.epochs):
        started_s = time.monotonic()
        network.train()
        order = torch.randperm(len(labels), generator=rng)
        total = 0.0
        for step in range(steps):
            chosen = order[step * options.batch : (step + 1) * options.batch]
            batch = augment(images[chosen], rng).expand(-1, 3, -1, -1)
            loss = functional.cross_entropy(
                network(batch), labels[chosen], label_smoothing=options.smoothing
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
            if step % 50 == 49:
                rate_per_s = (step + 1) * options.batch / (time.monotonic() - started_s)
                print(
                    f"epoch {epoch} step {step + 1} loss {total / (step + 1):.4f} {rate_per_s:.0f} img/s",
                    flush=True,
                )
        weights = options.out / f"model{suffix}.onnx"
        export(network, weights, name=f"resnet{options.depth}")
        measured = accuracy(weights, test_images, test_labels, threads=options.threads)
        history.append(
            {
                "loss": total / steps,
                "test_accuracy": measured,
                "seconds": time.monotonic() - started_s,
            }
        )
        print(f"epoch {epoch} {history[-1]}", flush=True)
        record = {
            "dataset": "Fashion-MNIST test",
            "metric": "accuracy",
            "value": measured,
            "n": len(test_labels),
            "largest_difference_from_torch": difference(network, weights, test_images),
            "file": weights.name,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "settings": {
                name: getattr(options, name)
                for name in (
                    "depth",
                    "epochs",
                    "batch",
                    "rate",
                    "decay",
                    "smoothing",
                    "seed",
                    "threads",
                )
            },
            "versions": {
                module.__name__: module.__version__ for module in (torch, onnx, onnxruntime, np)
            },
            "epochs": history,
        }
        (options.record / f"training{suffix}.json").write_text(json.dumps(record, indent=2) + "\n")
        if options.checkpoint:
            saved = {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "rng": rng.get_state(),
                "history": history,
            }
            torch.save(saved, options.checkpoint.with_suffix(".partial"))
            options.checkpoint.with_suffix(".partial").replace(options.checkpoint)


if __name__ == "__main__":
    main()
