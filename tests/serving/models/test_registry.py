"""The registry of kinds: what is said when a kind cannot be had."""

import pathlib
import sys
import tomllib

import pytest

from serving import models
from serving.errors import ModelLoadFailed

PROJECT = pathlib.Path(__file__).parents[3] / "pyproject.toml"


def test_hints_name_extras_that_exist():
    """An extra that a hint names is one of pyproject.toml's, of a kind that exists."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert extras.keys() >= models.EXTRAS
    assert set(models.KINDS) >= models.EXTRAS


@pytest.mark.parametrize(
    ("kind", "package", "hint"),
    [
        ("sklearn", "skops", "pip install '.[sklearn]' in a clone of Luthier"),
        ("torch", "torch", "pip install '.[torch]' in a clone of Luthier"),
        ("tensorflow", "tensorflow", "pip install '.[tensorflow]' in a clone of Luthier"),
        ("xgboost", "xgboost", "pip install '.[xgboost]' in a clone of Luthier"),
        ("lightgbm", "lightgbm", "pip install '.[lightgbm]' in a clone of Luthier"),
        ("catboost", "catboost", "pip install '.[catboost]' in a clone of Luthier"),
        ("onnx", "onnxruntime", "install Luthier again"),
    ],
)
def test_a_missing_runtime_is_told_with_what_to_install(kind, package, hint, monkeypatch):
    """The kind, the package that is missing, and what brings it."""
    for name in list(sys.modules):
        if name == f"serving.models.{kind}" or name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelLoadFailed) as caught:
        models.load(kind, None, threads=1)
    assert str(caught.value).endswith(f"kind {kind!r} needs the Python package {package!r}: {hint}")


def test_a_missing_library_of_the_system_is_told_with_what_brings_it(tmp_path, monkeypatch):
    """LightGBM's package is there, but what it loads is not, as in small images."""
    text = "libgomp.so.1: cannot open shared object file"
    (tmp_path / "lightgbm.py").write_text(f"raise OSError({text!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lightgbm", "serving.models.lightgbm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModelLoadFailed, match=rf"'lightgbm' needs .*{text}.*install libgomp1"):
        models.load("lightgbm", None, threads=1)


def test_an_unknown_kind_lists_the_known_ones():
    """A kind that is not there is answered with those that are."""
    with pytest.raises(ModelLoadFailed, match="'fortran' is not one of onnx, sklearn"):
        models.load("fortran", None, threads=1)


def test_a_replica_of_ours_says_that_it_cannot_load_a_program():
    """A program is a replica itself."""
    with pytest.raises(ModelLoadFailed, match="a separate program"):
        models.load("command", pathlib.Path("/x"), threads=1)
