"""Trains the bundled `reviews`: writes `model.onnx`, `vocabulary.txt` and `samples.npz` into the package.

Text CNN of Kim (2014, arXiv:1408.5882): embedding, convolutions over 3, 4 and 5 words, maximum over
the text, dense layer; two classes, 0.3 million parameters, no pretrained vectors.

Data: review sentences, 10,605 of films (Pang and Lee 2004), 3,708 of products (Hu and Liu 2004),
with the mean of twenty people's ratings from -4 to 4 (Hutto and Gilbert 2014, VADER), from the
source distribution of vaderSentiment 3.3.2 (MIT licence: LICENSE-vaderSentiment.txt). Means from
0.5 are positive, to -0.5 negative; others are omitted. Every tenth is held out, never selected on;
the sample is 512 random ones of these. So few, hard sentences give a mediocre accuracy; the model
serves for its cost.

Maps `tokens` INT32 [batch, words], at least `MIN_WORDS`, to `scores` FP32 [batch, 2] with softmax.
Tokens are lines of `vocabulary.txt` from 0, `<pad>` and `<unknown>` first. Samples are cut or
padded to `SAMPLE_WORDS`.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    pip install torch onnxruntime numpy pyyaml
    python -m zoo.reviews.train vaderSentiment-3.3.2.tar.gz

About three minutes on one core.
"""

from __future__ import annotations

import argparse
import collections
import io
import pathlib
import re
import tarfile
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from serving.zoo import onnx_file
from zoo import places, training

INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
PARTS = (
    "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
)
NEUTRAL = 0.5
"""Means nearer to 0 have no label."""
PAD, UNKNOWN = 0, 1
FEWEST = 2
"""Least training occurrences of a vocabulary word."""
MAX_WORDS = 4000
"""In the vocabulary."""
WIDTHS = (3, 4, 5)
MIN_WORDS = max(WIDTHS)
SAMPLE_WORDS = 32
SAMPLE_ITEMS = 512
CLASSES = 2


class TextCnn(nn.Module):
    """Embedding, convolutions, maxima, one dense layer."""

    def __init__(self, words: int, *, dimension: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dimension, padding_idx=PAD)
        self.convolutions = nn.ModuleList(nn.Conv1d(dimension, filters, width) for width in WIDTHS)
        self.head = nn.Linear(filters * len(WIDTHS), CLASSES)
        nn.init.normal_(self.embedding.weight, std=0.3)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, words) -> (n, 2) logits."""
        x = functional.dropout(self.embedding(tokens), 0.3, self.training).transpose(1, 2)
        pooled = [functional.relu(layer(x)).amax(dim=2) for layer in self.convolutions]
        return self.head(functional.dropout(torch.cat(pooled, dim=1), 0.5, self.training))


def load(archive: pathlib.Path) -> tuple[list[list[str]], NDArray[np.int64]]:
    """Load labelled sentences."""
    texts, labels = [], []
    with tarfile.open(archive) as outer:
        inner = outer.extractfile(INNER).read()
    with tarfile.open(fileobj=io.BytesIO(inner)) as files:
        for part in PARTS:
            for line in files.extractfile(part).read().decode("utf-8", "replace").splitlines():
                _, rating, text = line.split("\t", 2)
                if abs(float(rating)) >= NEUTRAL:
                    texts.append(words_of(text))
                    labels.append(int(float(rating) > 0))
    return texts, np.array(labels)


def words_of(text: str) -> list[str]:
    """Split into lower-case words and marks; apostrophes begin words."""
    return re.findall(r"[a-z]+|'[a-z]+|\d+|[!?.,;:]", text.lower())


def as_tokens(texts: list[list[str]], numbers: dict[str, int]) -> NDArray[np.int32]:
    """Return (n, SAMPLE_WORDS), cut and padded."""
    tokens = np.full((len(texts), SAMPLE_WORDS), PAD, np.int32)
    for row, words in zip(tokens, texts, strict=True):
        known = [numbers.get(word, UNKNOWN) for word in words[:SAMPLE_WORDS]]
        row[: len(known)] = known
    return tokens


def as_onnx(network: TextCnn) -> onnx_file.Graph:
    """Return the network with softmax."""
    graph = onnx_file.Graph("reviews")
    table = graph.weight("embedding", network.embedding.weight.detach().numpy())
    tokens = graph.input("tokens", "int32", ["batch", "words"])
    x = graph.add("Transpose", graph.add("Gather", table, tokens), perm=[0, 2, 1])
    pooled = []
    for width, layer in zip(WIDTHS, network.convolutions, strict=True):
        weight = graph.weight(f"weight_{width}", layer.weight.detach().numpy())
        bias = graph.weight(f"bias_{width}", layer.bias.detach().numpy())
        found = graph.add("Relu", graph.add("Conv", x, weight, bias, kernel_shape=[width]))
        pooled.append(graph.add("GlobalMaxPool", found))
    x = graph.add("Flatten", graph.add("Concat", *pooled, axis=1))
    weight = graph.weight("head_weight", network.head.weight.detach().numpy())
    bias = graph.weight("head_bias", network.head.bias.detach().numpy())
    graph.add("Softmax", graph.add("Gemm", x, weight, bias, transB=1), axis=1, output="scores")
    graph.output("scores", "float32", ["batch", CLASSES])
    return graph


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled reviews.")
    parser.add_argument("archive", type=pathlib.Path, help="vaderSentiment-3.3.2.tar.gz")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=64, help="sentences per step")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--decay", type=float, default=1e-2, help="weight decay")
    parser.add_argument("--dimension", type=int, default=64, help="of word vectors")
    parser.add_argument("--filters", type=int, default=64, help="of each width")
    parser.add_argument("--forgotten", type=float, default=0.1, help="share of words made unknown")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--threads", type=int, default=1)
    return places.parsed(parser, "reviews")


def main() -> None:
    """Train, export, measure."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    texts, labels = load(options.archive)
    held_out = np.arange(len(labels)) % 10 == 9
    counts = collections.Counter(
        word for words, out in zip(texts, held_out, strict=True) if not out for word in words
    )
    known = [word for word, times in counts.most_common(MAX_WORDS) if times >= FEWEST]
    vocabulary = ["<pad>", "<unknown>", *known]
    tokens = as_tokens(texts, {word: number for number, word in enumerate(vocabulary)})
    train_tokens, train_labels = (
        torch.from_numpy(array[~held_out]) for array in (tokens.astype(np.int64), labels)
    )
    test_tokens, test_labels = tokens[held_out], labels[held_out]

    network = TextCnn(len(vocabulary), dimension=options.dimension, filters=options.filters)
    steps = len(train_labels) // options.batch
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=options.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=options.rate, total_steps=options.epochs * steps
    )
    losses: list[float] = []
    started_s = time.monotonic()
    for epoch in range(options.epochs):
        network.train()
        order = torch.randperm(len(train_labels))
        total = 0.0
        for step in range(steps):
            chosen = order[step * options.batch : (step + 1) * options.batch]
            batch = train_tokens[chosen].clone()
            batch[(torch.rand(batch.shape) < options.forgotten) & (batch != PAD)] = UNKNOWN
            loss = functional.cross_entropy(network(batch), train_labels[chosen])
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
    (options.out / "vocabulary.txt").write_text("".join(f"{word}\n" for word in vocabulary))
    chosen = np.random.default_rng(options.seed).permutation(len(test_labels))[:SAMPLE_ITEMS]
    np.savez_compressed(
        options.out / "samples.npz", tokens=test_tokens[chosen], labels=test_labels[chosen]
    )
    majority = float(np.bincount(test_labels).max() / len(test_labels))
    training.write_record(
        options.record,
        quality={
            "dataset": "sentences of film and product reviews (VADER), held out",
            "metric": "accuracy",
            "value": round(training.accuracy(weights, "tokens", test_tokens, test_labels), 4),
            "n": len(test_labels),
            "majority": round(majority, 4),
        },
        files=[weights],
        difference=training.difference(weights, network, "tokens", test_tokens),
        options=options,
        versions={},
        losses=losses,
        seconds=time.monotonic() - started_s,
    )


if __name__ == "__main__":
    main()
