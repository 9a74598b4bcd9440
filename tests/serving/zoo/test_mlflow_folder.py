"""MLflow's folders without MLflow: what is served of one, and what an `MLmodel` may not be."""

import zipfile

import pytest
import yaml

from serving import zoo
from serving.engine import version_folders
from serving.errors import ModelLoadFailed
from serving.values import ModelId
from serving.zoo import mlflow_folder


def folder(path, **flavors):
    path.mkdir(parents=True, exist_ok=True)
    (path / "MLmodel").write_text(yaml.safe_dump({"flavors": flavors}))
    return path


def test_the_file_of_a_flavor_is_served_by_its_kind(tmp_path):
    mine = folder(
        tmp_path / "mine" / "3",
        onnx={"data": "model.onnx"},
        python_function={"loader_module": "mlflow.onnx"},
    )
    (mine / "model.onnx").write_bytes(b"")
    card = zoo.find(str(mine))
    assert (card.kind, card.path, card.name, card.version) == (
        "onnx",
        mine / "model.onnx",
        "mine",
        "3",
    )


def test_a_saved_model_may_be_below_the_folder_that_is_named(tmp_path):
    mine = folder(tmp_path / "mine", tensorflow={"data": "data", "model_type": "keras"})
    (mine / "data" / "model").mkdir(parents=True)
    (mine / "data" / "model" / "saved_model.pb").write_bytes(b"")
    assert zoo.find(str(mine)).path == mine / "data" / "model"


@pytest.mark.parametrize("name", ["data/model.pth", "data/model.pt2"])
def test_a_file_of_pytorch_is_served_unless_it_is_a_pickle(tmp_path, name):
    mine = folder(tmp_path / "mine", pytorch={"model_data": "data"})
    (mine / "data").mkdir()
    with zipfile.ZipFile(mine / name, "w") as archive:
        archive.writestr("archive/data.pkl", "")
    with pytest.raises(ModelLoadFailed, match=r"its flavor pytorch: a pickle or code.*--trust"):
        zoo.find(str(mine))
    with zipfile.ZipFile(mine / name, "a") as archive:
        archive.writestr("archive/constants.pkl", "")
    assert (zoo.find(str(mine)).kind, zoo.find(str(mine)).path) == ("torch", mine / name)


def test_no_file_outside_the_folder_is_served(tmp_path):
    (tmp_path / "other.onnx").write_bytes(b"")
    mine = folder(tmp_path / "mine", onnx={"data": "../other.onnx"})
    with pytest.raises(ModelLoadFailed, match="--trust"):
        zoo.find(str(mine))


def test_a_repository_serves_native_files_and_trusts_nothing(tmp_path):
    """Its folder may be written by others than whoever starts the server."""
    mine = folder(tmp_path / "mine" / "2", sklearn={"pickled_model": "model.pkl"})
    (mine / "model.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelLoadFailed, match="add --trust"):
        version_folders.find_spec(mine, ModelId("mine", "2"))
    folder(mine, xgboost={"data": "model.ubj"})
    (mine / "model.ubj").write_bytes(b"{L\0\0\0\0\0\0\0\7learner{")
    assert version_folders.find_spec(mine, ModelId("mine", "2")).kind == "xgboost"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not valid YAML"),
        ("- 1", "expected a mapping"),
        ("flavors: 3", "expected `flavors`"),
        ("flavors: {onnx: 1}", "expected `flavors`"),
        ("a: &a 1\nb: *a", "aliases"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("#" * mlflow_folder.MAX_BYTES + "\n", "larger than"),
    ],
)
def test_a_file_that_is_not_mlflows_is_one_clear_line(tmp_path, text, reason):
    (tmp_path / "MLmodel").write_text(text)
    with pytest.raises(ModelLoadFailed, match=reason) as caught:
        zoo.find(str(tmp_path))
    assert "\n" not in str(caught.value)
