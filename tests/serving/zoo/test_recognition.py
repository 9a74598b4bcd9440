"""Kinds of files by what they hold; whole files of the frameworks are recognised in tests/frameworks."""

import pickle
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import zoo
from serving.errors import ModelLoadFailed
from serving.zoo import recognition

XGBOOST = b'{"learner":{"attributes":{},"feature_names":[]'


def archive(path, *parts):
    with zipfile.ZipFile(path, "w") as opened:
        for part in parts:
            opened.writestr(part, "")
    return path


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        (["net/data.pkl", "net/code/net.py", "net/constants.pkl"], "torch"),
        (["net/archive_format", "net/models/model.json"], "torch"),
        (["archive/data.pkl", "archive/version"], "torch"),
        (["schema.json", "1.npy"], "sklearn"),
        (["hello"], None),
    ],
)
def test_an_archive_is_known_by_its_parts(tmp_path, parts, kind):
    assert recognition.kind_of(archive(tmp_path / "model", *parts)) == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        pytest.param(b"{L\0\0\0\0\0\0\0\7learner{", "xgboost", id="UBJSON"),
        pytest.param(XGBOOST, "xgboost", id="JSON"),
        pytest.param(b'{\n "version": [3, 0, 1],\n "learner": {', "xgboost", id="written anew"),
        pytest.param(b"tree\nversion=v4\n", "lightgbm", id="LightGBM"),
        pytest.param(b"tree\r\nversion=v3\r\n", "lightgbm", id="lines of Windows"),
        pytest.param(b"CBM1\0\0", "catboost", id="CatBoost"),
        pytest.param(b"\x30\0\0\0ORTM\0\0", "onnx", id="ONNX Runtime's own"),
        pytest.param(b'{"name": "learner"}', None, id="other JSON"),
        pytest.param(b"tree\nhouse\n", None, id="a text"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_a_file_is_known_by_its_beginning_whatever_its_name(tmp_path, content, kind):
    for name in ("model", "model.json", "model.txt"):
        (tmp_path / name).write_bytes(content)
        assert recognition.file_kind(tmp_path / name) == kind


@given(content=st.binary(max_size=64), is_archive=st.booleans())
def test_no_content_makes_it_fail(tmp_path_factory, content, is_archive):
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(b"PK\x03\x04" * is_archive + content)
    assert recognition.kind_of(path) in {
        None,
        "torch",
        "sklearn",
        "xgboost",
        "lightgbm",
        "catboost",
    }


@pytest.mark.parametrize(
    ("name", "looked_for"),
    [("a.json", "XGBoost model .*learner"), ("a.txt", "LightGBM model .*tree")],
)
def test_a_text_that_is_no_model_tells_what_was_looked_for(tmp_path, name, looked_for):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ModelLoadFailed, match=f"it is not an? {looked_for}") as caught:
        zoo.find(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_pickle_is_left_to_the_kind_that_says_how_to_convert_it(tmp_path):
    """Unless its suffix is another kind's: old files of PyTorch are pickles, too."""
    for name, kind in (("model.bin", "sklearn"), ("model.pt", "torch")):
        (tmp_path / name).write_bytes(pickle.dumps({"a": 1}))
        assert zoo.find(str(tmp_path / name)).kind == kind
