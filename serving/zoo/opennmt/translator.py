"""Model `opennmt`: translates English number words into German, letter by letter.

The decoder runs once per letter for the whole batch until its last output has ended, as in OpenNMT
(Klein et al. 2017, arXiv:1701.02810). Maps `text` BYTES [n] to `translation` BYTES [n]; texts other
than numbers become nonsense.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, onnx

PAD, UNKNOWN = 0, 1
START, END = 0, 1
MAX_LETTERS = 96
"""Maximum output length; the longest German number below a million has 65 letters."""
MAX_WORDS = 64
MASKED = -1e9

_WORD = re.compile(r"[a-z]+")


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation."""
    return _WORD.findall(text.lower())


class TextBatch(NamedTuple):
    """Padded word tokens of several texts."""

    words: NDArray[np.int64]
    """Word tokens of shape (longest, n)."""
    lengths: NDArray[np.int32]
    """Number of words per text, of shape (n,)."""


class Translator:
    """Encoder, decoder, and the loop over letters."""

    def __init__(self, path: pathlib.Path, threads: int) -> None:
        self.encoder = onnx.Model(path.with_name("encoder.onnx"), threads=threads)
        self._decoder = onnx.Model(path.with_name("decoder.onnx"), threads=threads)
        vocabulary = json.loads(path.with_name("vocabulary.json").read_text(encoding="utf-8"))
        self._numbers = {word: number for number, word in enumerate(vocabulary["source"])}
        self._letters: list[str] = vocabulary["target"]
        self.inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        self.outputs = [{"name": "translation", "datatype": "BYTES", "shape": [-1]}]

    def preprocess(self, inputs: Arrays) -> TextBatch:
        """Convert texts to word tokens."""
        rows = [self._read(text) for text in inputs["text"]]
        lengths = np.array([len(row) for row in rows], np.int32)
        words = np.full((int(lengths.max()), len(rows)), PAD, np.int64)
        for place, row in enumerate(rows):
            words[: len(row), place] = row
        return TextBatch(words, lengths)

    def predict_batch(self, batch: TextBatch) -> NDArray[np.int64]:
        """Return letter tokens of shape (n, longest), undefined after END."""
        encoded = self.encoder.predict_batch({"words": batch.words, "lengths": batch.lengths})
        filled = np.arange(len(batch.words)) >= batch.lengths[:, np.newaxis]
        mask = np.where(filled, np.float32(MASKED), np.float32(0))
        letter: NDArray[Any] = np.full(len(batch.lengths), START, np.int64)
        state = encoded["state"]
        ended = np.zeros(len(letter), bool)
        letters: list[NDArray[Any]] = []
        while len(letters) < MAX_LETTERS and not ended.all():
            step = self._decoder.predict_batch(
                {"letter": letter, "state": state, "memory": encoded["memory"], "mask": mask}
            )
            letter, state = step["next"], step["next_state"]
            letters.append(letter)
            ended |= letter == END
        return np.stack(letters, axis=1)

    def postprocess(self, letters: NDArray[np.int64]) -> Arrays:
        """Convert letter tokens to texts."""
        texts = np.empty(len(letters), object)
        for place, row in enumerate(letters.tolist()):
            end = row.index(END) if END in row else len(row)
            texts[place] = "".join(self._letters[letter] for letter in row[:end]).encode()
        return {"translation": texts}

    def _read(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        words = words_of(text)[:MAX_WORDS]
        return [self._numbers.get(word, UNKNOWN) for word in words] or [UNKNOWN]
