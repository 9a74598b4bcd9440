"""The model that is built where it is served."""

import hashlib
import json
import os
import pwd
import stat
import tempfile

import numpy as np
import pytest

from serving import models, zoo
from serving.api.triton.repository_service import RepositoryService
from serving.errors import ModelLoadFailed
from serving.zoo import bundled, model_specs
from serving.zoo.resnet50 import build
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway


@pytest.fixture(scope="module", name="cache")
def _cache(tmp_path_factory):
    """A user's cache of its own: a hundred megabytes have no place in the real one."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
    for file in folder.rglob("*.onnx"):
        file.unlink()


@pytest.fixture(scope="module", name="card")
def _card(cache):
    return zoo.find("resnet50")


def test_the_file_is_the_same_on_every_machine_and_kept(card, cache):
    assert card.path == cache / "luthier" / "zoo" / "resnet50" / build.FILE_NAME
    data = card.path.read_bytes()
    assert len(data) == build.BYTES
    assert hashlib.sha256(data).hexdigest() == build.SHA256
    written_ns = card.path.stat().st_mtime_ns
    assert zoo.find("resnet50").path.stat().st_mtime_ns == written_ns
    assert [file.name for file in card.path.parent.iterdir()] == [build.FILE_NAME]


def test_that_it_is_there_is_told_without_building_it(tmp_path, monkeypatch):
    """What every server lists at its start costs no server two seconds and a hundred megabytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (listed,) = [card for card in zoo.bundled_specs() if card.name == "resnet50"]
    assert listed.path is None
    assert zoo.find("resnet").path in {card.path for card in zoo.bundled_specs()}
    assert not any(tmp_path.iterdir())


def test_a_server_that_is_asked_for_it_by_name_builds_it(cache):
    """Through Triton's call that loads a model."""
    del cache
    with gateway(home=FakeHome()) as running:
        hub = RepositoryService(running.engine, None, specs=zoo.bundled_specs(), is_controlled=True)
        running.call(hub.load("resnet50", None))
        (served,) = [one for one in running.engine.deployments() if one.id.name == "resnet50"]
        assert served.spec == zoo.find("resnet50")


def test_half_a_file_is_built_again(card):
    with card.path.open("r+b") as file:
        file.truncate(1000)
    assert zoo.find("resnet50").path.stat().st_size == build.BYTES


def test_it_is_kept_in_records_by_its_name(card):
    """The cache of the next start may be another one."""
    data = json.loads(json.dumps(model_specs.as_json(card)))
    assert data["path"] == "built:resnet50"
    assert model_specs.from_json(data) == card


def test_it_answers_images_of_imagenets_size(card):
    """Its answers mean nothing, but they are numbers and not all the same."""
    model = models.load(card.kind, card.path, threads=1)
    assert model.signature.inputs[0].shape == (-1, 3, 224, 224)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
    scores = model.predict_batch({"image": images})["scores"]
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, atol=1e-4)
    assert scores.max() < 0.5
    assert np.abs(scores[0] - scores[1]).max() > 1e-6


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "luthier").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelLoadFailed, match="XDG_CACHE_HOME names another folder") as caught:
        zoo.find("resnet50")
    assert "\n" not in str(caught.value)


def test_other_weights_than_promised_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("BLOCKS", "WIDTHS"):
        monkeypatch.setattr(build, name, ())
    with pytest.raises(ModelLoadFailed, match=r"came out as .*expected ba6d07dc6f2f"):
        zoo.find("resnet50")
    assert not list(tmp_path.rglob("*.onnx"))


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    """As in many containers; every record of a model asks where that cache is."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert bundled.built_folder("resnet50").is_relative_to(tempfile.gettempdir())
    assert model_specs.as_json(zoo.find("mnist"))["path"] == "zoo:mnist/model.onnx"


def test_other_weights_of_the_same_size_are_built_again(card):
    """Whoever could write there would decide what the model answers, and what its file makes the runtime read."""
    with card.path.open("r+b") as file:
        file.seek(build.BYTES // 2)
        file.write(b"other weights")
    assert card.path.stat().st_size == build.BYTES
    data = zoo.find("resnet50").path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == build.SHA256


def test_the_cache_of_a_user_without_a_home_is_his_own(tmp_path, monkeypatch):
    """In the temporary directory anybody can make a folder of that name first."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o1777)
    planted = tmp_path / f"luthier-cache-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(ModelLoadFailed, match=r"belongs to user .* or set XDG_CACHE_HOME"):
        zoo.find("resnet50")
    planted.chmod(0o700)
    bundled.check_cache()
    planted.rmdir()
    bundled.check_cache()
    assert stat.S_IMODE(planted.stat().st_mode) == 0o700
