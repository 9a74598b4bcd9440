"""The bundled translator: what it gets right, and how it decodes."""

import numpy as np
import pytest

from serving import models, zoo
from serving.zoo.opennmt import translator


@pytest.fixture(scope="module", name="model")
def _model():
    card = zoo.find("opennmt")
    return models.load(card.kind, card.path, threads=1)


@pytest.fixture(scope="module", name="sample")
def _sample():
    with np.load(zoo.find("opennmt").sample) as arrays:
        return dict(arrays)


def translated(model, texts):
    batch = model.preprocess({"text": np.array(texts, object)})
    return [text.decode() for text in model.postprocess(model.predict_batch(batch))["translation"]]


def test_most_of_the_sample_is_translated_without_an_error(model, sample):
    """Of held-out numbers; the card promises 0.9985 of 2,000."""
    assert set(sample) == {"text", "labels"}
    assert len(set(sample["text"])) > 200
    found = np.array(translated(model, sample["text"][:64]))
    assert (found == sample["labels"][:64]).mean() >= 0.98


def test_a_text_is_translated_as_if_it_were_alone(model, sample):
    """Filling up to the longest changes nothing but the time."""
    texts = sorted(sample["text"][:16], key=len)[::5]
    assert translated(model, texts) == [translated(model, [text])[0] for text in texts]


def test_decoding_ends_with_the_longest_text(model, sample):
    """One run of the decoder for each letter of the longest translation, and one for its end."""
    short, long = (pick(sample["labels"], key=len) for pick in (min, max))
    by_label = dict(zip(sample["labels"], sample["text"], strict=True))
    for labels in ([short], [long], [short, long]):
        texts = np.array([by_label[label] for label in labels], object)
        letters = model.predict_batch(model.preprocess({"text": texts}))
        assert letters.shape == (len(labels), max(map(len, labels)) + 1)


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"!?", b"the quick brown fox", b"seven " * 500], ids=len
)
def test_nonsense_comes_out_as_nonsense_of_bounded_length(model, text):
    """Whatever it is given."""
    (answer,) = translated(model, [text])
    assert len(answer) <= translator.MAX_LETTERS


def test_marks_and_capitals_do_not_matter(model):
    assert translated(model, [b"Forty-two", b"FORTY, TWO", "forty two"]) == ["zweiundvierzig"] * 3
