"""docs/models.md: every example is made, found, loaded and asked as the page says.

Those of PyTorch, TensorFlow and the like run where these are installed, in tests/frameworks.
"""

from __future__ import annotations

import pathlib
import re
import runpy

import numpy as np
import pytest

from serving import models, zoo
from serving.models import KINDS, ONLY_TRUSTED
from serving.tensors.arrays import DTYPES

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "models.md"
MAKERS = {
    "sklearn": ["fit.py"],
    "torch": ["export.py", "script.py"],
    "tensorflow": ["save.py"],
    "xgboost": ["boost.py"],
    "lightgbm": ["grow.py"],
    "catboost": ["cat.py"],
    "mlflow": ["fold.py"],
}
"""Examples that make a model's file, by kind; the others are models themselves."""


def blocks():
    """The page's Python, by the file name in its first line."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {block.split()[1]: block for block in found}


def served(kind):
    """What the page serves in the section of a kind."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = next(text for text in sections if text.startswith(f"{kind}\n"))
    return re.findall(r"`python -m serving --model (\S+)(?: --trust)?`", section)


def make(folder, kind):
    """Write all examples, and run those that make a file of the kind."""
    for name, text in blocks().items():
        (folder / name).write_text(text)
    for name in MAKERS.get(kind, []):
        runpy.run_path(str(folder / name), run_name="example")  # in TorchScript it is part of names


def ask(model, count=2):
    """The outputs for some items of zeros, or of a word."""
    inputs = {}
    for spec in model.signature.inputs:
        shape = (count, *(abs(size) for size in spec.shape[1:]))
        if spec.datatype == "BYTES":
            inputs[spec.name] = np.full(shape, b" Lute ", object)
        else:
            inputs[spec.name] = np.zeros(shape, DTYPES[spec.datatype])
    for stage in ("preprocess", "predict_batch", "postprocess"):
        step = getattr(model, stage, None)
        inputs = inputs if step is None else step(inputs)
    return inputs


def check(folder, kind, threads=1):
    """Every model of a kind's section is found, loaded and asked."""
    names = served(kind)
    assert names
    for name in names:
        card = zoo.find(name, is_trusted=kind in ONLY_TRUSTED)
        assert card.kind == kind
        model = models.load(card.kind, card.path, threads=threads)
        outputs = ask(model)
        assert set(outputs) == {spec.name for spec in model.signature.outputs}
        assert all(len(array) == 2 for array in outputs.values())


@pytest.mark.parametrize("kind", ["python", "sklearn"])
def test_the_examples_of_a_kind_do_what_the_page_says(tmp_path, monkeypatch, kind):
    """The page's code makes models that its commands serve."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "sklearn")  # an example of the kind python is made of it
    check(tmp_path, kind)


def test_the_words_of_the_page_are_known(tmp_path, monkeypatch):
    """The example with stages before and after answers as it looks."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "python")
    model = models.load("python", pathlib.Path("words.py:Words"), threads=1)
    assert ask(model)["known"].tolist() == [True, True]


def test_every_kind_has_its_section_and_its_row():
    """Every kind that can be served is explained."""
    page = PAGE.read_text(encoding="utf-8")
    for kind in KINDS:
        assert f"| `{kind}` |" in page
        assert kind == "echo" or f"\n## {kind}\n" in page
