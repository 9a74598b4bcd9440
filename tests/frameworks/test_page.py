"""docs/models.md: the examples of the kinds whose libraries are installed for tests/frameworks."""

import functools

import pytest

from tests.frameworks.conftest import THREADS, import_mlflow, import_tensorflow, import_torch
from tests.test_models_page import check, make

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of TorchScript as a whole
]


@pytest.mark.parametrize(
    ("kind", "load"),
    [
        ("torch", import_torch),
        ("tensorflow", import_tensorflow),
        ("mlflow", import_mlflow),
        *[
            (k, functools.partial(pytest.importorskip, k))
            for k in ("xgboost", "lightgbm", "catboost")
        ],
    ],
)
def test_the_examples_of_a_kind_do_what_the_page_says(tmp_path, monkeypatch, kind, load):
    """The page's code makes models that its commands serve."""
    load()
    monkeypatch.chdir(tmp_path)
    make(tmp_path, kind)
    check(tmp_path, kind, threads=THREADS)
