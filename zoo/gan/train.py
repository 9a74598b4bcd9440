"""Trains the bundled `gan`: writes `model.onnx` and `samples.npz` into the package, `training.json` beside this file.

Discriminator of a semi-supervised GAN (Salimans et al. 2016, arXiv:1606.03498, section 5): ten
digits and a class "generated" with logit 0. It learns from few labelled images, many unlabelled,
and those of a generator that matches its mean features. 0.1 million parameters, fewer than the
paper's; weight normalisation, leaky rectifiers, dropout.

Data: drawings by `house_numbers.py`: 1,000 labelled, 20,000 unlabelled, 2,000 held out, the first
256 as sample. `supervised_only` is the accuracy after as many steps on the 1,000 alone, higher in
so short a training.

Maps `image` UINT8 [batch, 3, 32, 32] to `scores` FP32 [batch, 10] (softmax over digits) and `real`
FP32 [batch], the probability of not being generated.

    apt-get install fonts-dejavu fonts-liberation
    pip install torch onnxruntime numpy pyyaml pillow
    python -m zoo.gan.train

About fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from serving.zoo import onnx_file
from zoo import places, training
from zoo.gan import house_numbers

DIGITS = 10
LABELLED, UNLABELLED, TEST = 1000, 20_000, 2000
SAMPLE_ITEMS = 256
NOISE = 64
"""Inputs of the generator."""
SLOPE = 0.2
"""Of the leaky rectifiers."""
CALIBRATED = 200
"""Images that scale the initial weights."""
REPORT = 100
"""Steps per entry of `losses`."""

LAYERS = (
    # channels in and out, size, stride, padding, dropout before
    (3, 32, 3, 1, 1, 0.1),
    (32, 32, 3, 2, 1, 0.0),
    (32, 64, 3, 1, 1, 0.3),
    (64, 64, 3, 2, 1, 0.0),
    (64, 64, 3, 1, 0, 0.3),
    (64, 64, 1, 1, 0, 0.0),
)


class Discriminator(nn.Module):
    """Convolutions, image mean, digit logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(before, after, size, stride, padding))
            for before, after, size, stride, padding, _ in LAYERS
        )
        self.head = weight_norm(nn.Linear(LAYERS[-1][1], DIGITS))

    def calibrate(self, image: torch.Tensor) -> None:
        """Scale and shift each layer to mean 0 and deviation 1 (Salimans and Kingma 2016).

        Args:
            image: typical (n, 3, 32, 32) in -1..1.
        """
        x = image
        with torch.no_grad():
            for layer in (*self.layers, self.head):
                if layer is self.head:
                    x = x.mean(dim=(2, 3))
                given = layer(x).transpose(0, 1).flatten(1)
                scale = 1 / given.std(dim=1)
                scales = layer.parametrizations.weight.original0
                scales *= scale.reshape(-1, *[1] * (scales.ndim - 1))
                layer.bias.copy_((layer.bias - given.mean(dim=1)) * scale)
                x = functional.leaky_relu(layer(x), SLOPE)

    def features(self, image: torch.Tensor) -> torch.Tensor:
        """(n, 3, 32, 32) in -1..1 -> (n, 64)."""
        x = image
        for layer, (*_, dropped) in zip(self.layers, LAYERS, strict=True):
            x = functional.dropout(x, dropped, self.training)
            x = functional.leaky_relu(layer(x), SLOPE)
        return x.mean(dim=(2, 3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(n, 3, 32, 32) pixels in 0..255 -> (n, 10) logits."""
        return self.head(self.features(image.float() / 127.5 - 1))


class Generator(nn.Module):
    """Noise to images in -1..1, doubled three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NOISE, 64 * 4 * 4, bias=False),
            nn.Unflatten(1, (64, 4, 4)),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 48, 4, 2, 1, bias=False),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.ConvTranspose2d(48, 24, 4, 2, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """(n, NOISE) -> (n, 3, 32, 32)."""
        return self.layers(noise)


def as_onnx(network: Discriminator) -> onnx_file.Graph:
    """Return the evaluation network with folded normalisation."""
    graph = onnx_file.Graph("gan")
    x = graph.add("Cast", graph.input("image", "uint8", ["batch", 3, 32, 32]), to=1)
    x = graph.add("Mul", x, graph.weight("scale", np.float32(1 / 127.5)))
    x = graph.add("Sub", x, graph.weight("one", np.float32(1)))
    for place, (layer, (_, _, _, stride, padding, _)) in enumerate(
        zip(network.layers, LAYERS, strict=True)
    ):
        weight = graph.weight(f"weight_{place}", layer.weight.detach().numpy())
        bias = graph.weight(f"bias_{place}", layer.bias.detach().numpy())
        x = graph.add("Conv", x, weight, bias, strides=[stride] * 2, pads=[padding] * 4)
        x = graph.add("LeakyRelu", x, alpha=SLOPE)
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    weight = graph.weight("head_weight", network.head.weight.detach().numpy())
    bias = graph.weight("head_bias", network.head.bias.detach().numpy())
    x = graph.add("Gemm", x, weight, bias, transB=1)
    graph.add("Softmax", x, axis=1, output="scores")
    graph.add("Sigmoid", graph.add("ReduceLogSumExp", x, axes=[1], keepdims=0), output="real")
    graph.output("scores", "float32", ["batch", DIGITS])
    graph.output("real", "float32", ["batch"])
    return graph


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled gan.")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=32, help="images of each sort per step")
    parser.add_argument(
        "--rate", type=float, default=1.5e-3, help="of both, constant, then falling"
    )
    parser.add_argument("--every", type=int, default=2, help="steps for one of the generator")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    return places.parsed(parser, "gan")


def trained(
    options: argparse.Namespace,
    labelled: torch.Tensor,
    labels: torch.Tensor,
    unlabelled: torch.Tensor | None,
) -> tuple[Discriminator, list[float]]:
    """Train a discriminator; without unlabelled images a plain classifier."""
    torch.manual_seed(options.seed)
    discriminator, generator = Discriminator(), Generator()
    discriminator.calibrate(labelled[:CALIBRATED].float() / 127.5 - 1)
    optimizers = [
        torch.optim.Adam(network.parameters(), lr=options.rate, betas=(0.5, 0.999))
        for network in (discriminator, generator)
    ]
    losses: list[float] = []
    total = 0.0
    started_s = time.monotonic()
    for step in range(options.steps):
        chosen = torch.randint(len(labels), (options.batch,))
        known = training.shifted(labelled[chosen], None, pixels=2)
        if unlabelled is None:
            loss = functional.cross_entropy(discriminator(known), labels[chosen])
        else:
            other = unlabelled[torch.randint(len(unlabelled), (options.batch,))]
            made = generator(torch.randn(options.batch, NOISE))
            batch = torch.cat([known, other]).float() / 127.5 - 1
            features = discriminator.features(torch.cat([batch, made.detach()]))
            logits = discriminator.head(features)
            real = logits[options.batch : 2 * options.batch].logsumexp(dim=1)
            generated = logits[2 * options.batch :].logsumexp(dim=1)
            # -log p(real) of unlabelled images, -log p(generated) of generated ones
            loss = functional.cross_entropy(logits[: options.batch], labels[chosen])
            loss = loss + 0.5 * (functional.softplus(-real) + functional.softplus(generated)).mean()
        step_of(optimizers[0], loss)
        if unlabelled is not None and step % options.every == 0:
            with torch.no_grad():
                wanted = discriminator.features(batch[options.batch :]).mean(dim=0)
            given = discriminator.features(made).mean(dim=0)
            step_of(optimizers[1], (wanted - given).abs().mean())
        rate = options.rate * min(1.0, 3 * (1 - step / options.steps))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        total += loss.item()
        if step % REPORT == REPORT - 1:
            losses.append(total / REPORT)
            total = 0.0
            print(
                f"step {step + 1} loss {losses[-1]:.4f} {time.monotonic() - started_s:.0f} s",
                flush=True,
            )
    return discriminator.eval(), losses


def step_of(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take a descent step."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def main() -> None:
    """Draw, train, export, measure."""
    options = parse()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(options.seed)
    images, digits = house_numbers.draw(LABELLED + UNLABELLED + TEST, rng)
    labelled, labels = torch.from_numpy(images[:LABELLED]), torch.from_numpy(digits[:LABELLED])
    unlabelled = torch.from_numpy(images[LABELLED:-TEST])
    test_images, test_digits = images[-TEST:], digits[-TEST:]
    started_s = time.monotonic()
    weights = options.out / "model.onnx"
    alone, _ = trained(options, labelled, labels, None)
    as_onnx(alone).save(weights)
    supervised_only = training.accuracy(weights, "image", test_images, test_digits)
    network, losses = trained(options, labelled, labels, unlabelled)
    as_onnx(network).save(weights)
    np.savez_compressed(
        options.out / "samples.npz",
        image=test_images[:SAMPLE_ITEMS],
        labels=test_digits[:SAMPLE_ITEMS],
    )
    training.write_record(
        options.record,
        quality={
            "dataset": "drawn house numbers (not photographs), held out",
            "metric": "accuracy",
            "value": training.accuracy(weights, "image", test_images, test_digits),
            "n": TEST,
            "supervised_only": supervised_only,
        },
        files=[weights],
        difference=training.difference(weights, network, "image", test_images),
        options=options,
        versions={"pillow": importlib.metadata.version("pillow")},
        losses=losses,
        seconds=time.monotonic() - started_s,
    )


if __name__ == "__main__":
    main()
