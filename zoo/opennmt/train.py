"""Trains the bundled `opennmt`: writes ONNX files, `vocabulary.json` and `samples.npz` into the package.

Encoder-decoder with attention (Bahdanau et al. 2014; Luong et al. 2015, arXiv:1508.04025, "general"
score): bidirectional GRU over English words, GRU over German letters, 0.3 million parameters.

Data: cardinals below a million, ordinals below ten thousand, and years, by num2words, so that
outputs can be checked; all lengths equally often. A tenth (from 100 on, by checksum) is held out,
the first 256 as sample. A translation is right if all its letters are.

    pip install torch onnxruntime numpy pyyaml num2words==0.5.14
    python -m zoo.opennmt.train

About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import time
import zlib

import numpy as np
import torch
from num2words import num2words
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from serving.zoo import onnx_file
from serving.zoo.opennmt import translator
from serving.zoo.opennmt.translator import END, PAD, START, Translator
from zoo import places, training

SAMPLE_ITEMS = 256
TEST_ITEMS = 2000
MAX_DIGITS = {"cardinal": 6, "ordinal": 4, "year": 4}
KINDS = ("cardinal", "cardinal", "ordinal", "year")
"""Half are cardinals."""
REPORT = 250
"""Steps per entry of `losses`."""
IGNORED = -100
"""Target after the end."""

Pair = tuple[str, str]


class Network(nn.Module):
    """Encoder, decoder, attention."""

    def __init__(self, words: int, letters: int, *, embedded: int, hidden: int) -> None:
        super().__init__()
        self.source = nn.Embedding(words, embedded)
        self.encoder = nn.GRU(embedded, hidden // 2, bidirectional=True)
        self.memory = nn.Linear(hidden, hidden)
        self.bridge = nn.Linear(hidden, hidden)
        self.target = nn.Embedding(letters, embedded)
        self.decoder = nn.GRU(embedded, hidden)
        self.joined = nn.Linear(2 * hidden, hidden // 2)
        self.head = nn.Linear(hidden // 2, letters)

    def encode(
        self, words: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, n) words and (n,) lengths -> memory (n, T, hidden), state (1, n, hidden)."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(words), lengths, enforce_sorted=False
        )
        outputs, last = self.encoder(packed)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, total_length=len(words))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=1)))
        return self.memory(outputs).transpose(0, 1), state[None]

    def decode(
        self, letters: torch.Tensor, state: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(L, n) letters, (1, n, hidden), (n, T, hidden), (n, T) mask -> logits, state.

        Logits are (n, L, letters).
        """
        outputs, state = self.decoder(self.target(letters), state)
        outputs = outputs.transpose(0, 1)
        scores = outputs @ memory.transpose(1, 2) + mask[:, None]
        context = scores.softmax(dim=2) @ memory
        joined = torch.tanh(self.joined(torch.cat([outputs, context], dim=2)))
        return self.head(joined), state


def is_held_out(kind: str, number: int) -> bool:
    """Whether a number is held out."""
    return number >= 100 and zlib.crc32(f"{kind} {number}".encode()) % 10 == 0


def draw(rng: random.Random, count: int, *, held_out: bool) -> list[Pair]:
    """Draw pairs of texts, all lengths of number equally often."""
    pairs: list[Pair] = []
    while len(pairs) < count:
        kind = rng.choice(KINDS)
        if kind == "year":
            number = rng.randrange(1000, 2100)
        else:
            digits = rng.randint(1, MAX_DIGITS[kind])
            number = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        if is_held_out(kind, number) is held_out:
            pairs.append(pair_of(kind, number))
    return pairs


def pair_of(kind: str, number: int) -> Pair:
    """Return a number's English and German words."""
    english, german = (num2words(number, lang=language, to=kind) for language in ("en", "de"))
    return english, german


def tensors_of(
    pairs: list[Pair], texts: Translator, letters: dict[str, int]
) -> tuple[torch.Tensor, ...]:
    """Return words (T, n), lengths (n,), letters (L, n), their successors (n, L)."""
    batch = texts.preprocess({"text": np.array([english for english, _ in pairs], object)})
    longest = max(len(german) for _, german in pairs) + 1
    inputs = torch.full((longest, len(pairs)), END)
    targets = torch.full((len(pairs), longest), IGNORED)
    for place, (_, german) in enumerate(pairs):
        numbers = [letters[letter] for letter in german]
        inputs[: len(numbers) + 1, place] = torch.tensor([START, *numbers])
        targets[place, : len(numbers) + 1] = torch.tensor([*numbers, END])
    return torch.from_numpy(batch.words), torch.from_numpy(batch.lengths).long(), inputs, targets


def gates(weights: torch.Tensor) -> NDArray[np.float32]:
    """Reorder GRU gates from PyTorch (reset, update, new) to ONNX (update, reset, hidden)."""
    reset, update, new = weights.detach().chunk(3)
    return torch.cat([update, reset, new]).numpy()


def gru(graph: onnx_file.Graph, name: str, layer: nn.GRU) -> list[str]:
    """Store a GRU's weights; return names of W, R, B."""
    parts = ("", "_reverse")[: 1 + layer.bidirectional]

    def stacked(kind: str) -> NDArray[np.float32]:
        return np.stack([gates(getattr(layer, f"{kind}_l0{part}")) for part in parts])

    biases = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    return [
        graph.weight(f"{name}_w", stacked("weight_ih")),
        graph.weight(f"{name}_r", stacked("weight_hh")),
        graph.weight(f"{name}_b", biases),
    ]


def dense(graph: onnx_file.Graph, name: str, layer: nn.Linear, x: str) -> str:
    """Append a dense layer over the last axis."""
    weight = graph.weight(f"{name}_weight", layer.weight.detach().numpy().T)
    bias = graph.weight(f"{name}_bias", layer.bias.detach().numpy())
    return graph.add("Add", graph.add("MatMul", x, weight), bias)


def encoder_as_onnx(network: Network) -> onnx_file.Graph:
    """`words` INT64 [T, n], `lengths` INT32 [n] -> `memory`, `state`.

    `memory` is [n, T, hidden], `state` [1, n, hidden].
    """
    graph = onnx_file.Graph("encoder")
    hidden = network.encoder.hidden_size
    words = graph.input("words", "int64", ["words", "batch"])
    lengths = graph.input("lengths", "int32", ["batch"])
    x = graph.add("Gather", graph.weight("source", network.source.weight.detach().numpy()), words)
    weights = gru(graph, "encoder", network.encoder)
    all_states = graph.add(
        "GRU", x, *weights, lengths, outputs=["all_states", "last_states"],
        direction="bidirectional", hidden_size=hidden, linear_before_reset=1,
    )  # fmt: skip
    # [T, 2, n, hidden / 2] -> [n, T, hidden]
    x = graph.add("Transpose", all_states, perm=[2, 0, 1, 3])
    x = graph.add("Reshape", x, graph.weight("joined_shape", np.array([0, 0, -1], np.int64)))
    memory = dense(graph, "memory", network.memory, x)
    graph.add("Identity", memory, output="memory")
    x = graph.add("Transpose", "last_states", perm=[1, 0, 2])
    x = graph.add("Reshape", x, graph.weight("last_shape", np.array([0, -1], np.int64)))
    x = graph.add("Tanh", dense(graph, "bridge", network.bridge, x))
    graph.add("Unsqueeze", x, graph.weight("first_axis", np.array([0], np.int64)), output="state")
    graph.output("memory", "float32", ["batch", "words", 2 * hidden])
    graph.output("state", "float32", [1, "batch", 2 * hidden])
    return graph


def decoder_as_onnx(network: Network) -> onnx_file.Graph:
    """One letter: `letter` INT64 [n], `state`, `memory`, `mask` -> `next`, `next_state`.

    `mask` is [n, T], `next` INT64 [n].
    """
    graph = onnx_file.Graph("decoder")
    hidden = network.decoder.hidden_size
    letter = graph.input("letter", "int64", ["batch"])
    state = graph.input("state", "float32", [1, "batch", hidden])
    memory = graph.input("memory", "float32", ["batch", "words", hidden])
    mask = graph.input("mask", "float32", ["batch", "words"])
    first, last = (graph.weight(name, np.array([axis], np.int64)) for name, axis in
                   (("first_axis", 0), ("last_axis", 2)))  # fmt: skip
    x = graph.add("Gather", graph.weight("target", network.target.weight.detach().numpy()), letter)
    weights = gru(graph, "decoder", network.decoder)
    graph.add(
        "GRU", graph.add("Unsqueeze", x, first), *weights, "", state, outputs=["", "next_state"],
        hidden_size=hidden, linear_before_reset=1,
    )  # fmt: skip
    query = graph.add("Squeeze", "next_state", first)  # [n, hidden]
    scores = graph.add("MatMul", memory, graph.add("Unsqueeze", query, last))  # [n, T, 1]
    scores = graph.add("Add", graph.add("Squeeze", scores, last), mask)
    share = graph.add("Unsqueeze", graph.add("Softmax", scores, axis=1),
                      graph.weight("second_axis", np.array([1], np.int64)))  # fmt: skip
    context = graph.add("Squeeze", graph.add("MatMul", share, memory), "second_axis")
    x = graph.add("Concat", query, context, axis=1)
    x = graph.add("Tanh", dense(graph, "joined", network.joined, x))
    graph.add("ArgMax", dense(graph, "head", network.head, x), axis=1, keepdims=0, output="next")
    graph.output("next", "int64", ["batch"])
    graph.output("next_state", "float32", [1, "batch", hidden])
    return graph


def translated(texts: Translator, english: list[str]) -> list[str]:
    """Translate with the shipped files."""
    found: list[str] = []
    for start in range(0, len(english), training.BATCH):
        batch = texts.preprocess(
            {"text": np.array(english[start : start + training.BATCH], object)}
        )
        letters = texts.postprocess(texts.predict_batch(batch))
        found += [text.decode() for text in letters["translation"]]
    return found


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled opennmt.")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=96, help="texts per step")
    parser.add_argument("--rate", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument(
        "--embedded", type=int, default=48, help="size of words' and letters' vectors"
    )
    parser.add_argument("--hidden", type=int, default=192, help="size of the decoder's state")
    parser.add_argument("--drawn", type=int, default=40_000, help="texts to learn from")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--threads", type=int, default=1)
    return places.parsed(parser, "opennmt")


def learnt(
    network: Network,
    pairs: list[Pair],
    texts: Translator,
    letters: dict[str, int],
    options: argparse.Namespace,
    rng: random.Random,
) -> list[float]:
    """Train and return the mean loss per `REPORT` steps."""
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=options.rate, total_steps=options.steps
    )
    losses: list[float] = []
    total = 0.0
    started_s = time.monotonic()
    batches: list[list[Pair]] = []
    for step in range(options.steps):
        if not batches:  # new epoch: batches of similar length, shuffled
            order = sorted(pairs, key=lambda pair: (len(pair[1]) // 8, rng.random()))
            batches = [order[at : at + options.batch] for at in range(0, len(order), options.batch)]
            rng.shuffle(batches)
        words, lengths, inputs, targets = tensors_of(batches.pop(), texts, letters)
        memory, state = network.encode(words, lengths)
        mask = torch.where(words.T == PAD, translator.MASKED, 0.0)
        logits, _ = network.decode(inputs, state, memory, mask)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % REPORT == REPORT - 1:
            losses.append(total / REPORT)
            total = 0.0
            print(
                f"step {step + 1} loss {losses[-1]:.5f} {time.monotonic() - started_s:.0f} s",
                flush=True,
            )
    return losses


def main() -> None:
    """Train, export, measure."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    small = [pair_of(kind, number) for kind in ("cardinal", "ordinal") for number in range(100)]
    pairs = small + draw(rng, options.drawn, held_out=False)
    test = draw(rng, TEST_ITEMS, held_out=True)
    source = sorted({word for english, _ in pairs for word in translator.words_of(english)})
    target = sorted({letter for _, german in pairs for letter in german})
    vocabulary = {
        "source": ["<pad>", "<unknown>", *source],
        "target": ["<start>", "<end>", *target],
    }
    (options.out / "vocabulary.json").write_text(
        json.dumps(vocabulary, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    letters = {letter: number for number, letter in enumerate(vocabulary["target"])}
    network = Network(
        len(vocabulary["source"]), len(letters), embedded=options.embedded, hidden=options.hidden
    )
    encoder, decoder = options.out / "encoder.onnx", options.out / "decoder.onnx"
    encoder_as_onnx(network).save(encoder)
    decoder_as_onnx(network).save(decoder)
    texts = Translator(options.out / "translator.py", options.threads)

    started_s = time.monotonic()
    losses = learnt(network, pairs, texts, letters, options, rng)
    encoder_as_onnx(network).save(encoder)
    decoder_as_onnx(network).save(decoder)
    texts = Translator(options.out / "translator.py", options.threads)
    english, german = (list(side) for side in zip(*test, strict=True))
    found = translated(texts, english)
    right = [given == wanted for given, wanted in zip(found, german, strict=True)]
    for wrong in [place for place, is_right in enumerate(right) if not is_right][:10]:
        print(f"{english[wrong]!r}: {found[wrong]!r}, expected {german[wrong]!r}")
    np.savez_compressed(
        options.out / "samples.npz",
        text=np.array(english[:SAMPLE_ITEMS]),
        labels=np.array(german[:SAMPLE_ITEMS]),
    )
    training.write_record(
        options.record,
        quality={
            "dataset": "numbers in words (num2words), held out",
            "metric": "translations without an error",
            "value": sum(right) / len(right),
            "n": len(right),
        },
        files=[encoder, decoder],
        difference=difference(network, texts, english[:7]),
        options=options,
        versions={"num2words": importlib.metadata.version("num2words")},
        losses=losses,
        seconds=time.monotonic() - started_s,
    )


def difference(network: Network, texts: Translator, english: list[str]) -> float:
    """Return the encoder file's largest difference from PyTorch."""
    batch = texts.preprocess({"text": np.array(english, object)})
    with torch.inference_mode():
        memory, state = network.encode(
            torch.from_numpy(batch.words), torch.from_numpy(batch.lengths).long()
        )
    given = texts.encoder.predict_batch({"words": batch.words, "lengths": batch.lengths})
    return max(
        float(np.abs(given["memory"] - memory.numpy()).max()),
        float(np.abs(given["state"] - state.numpy()).max()),
    )


if __name__ == "__main__":
    main()
