"""Folders of prepared forms: one for each file, private, and bounded."""

import dataclasses
import os
import time

import pytest

from serving import prepared
from serving.prepared import Forms
from serving.values import ModelCard


@pytest.fixture(name="card")
def _card(tmp_path):
    file = tmp_path / "m.onnx"
    file.write_bytes(b"a model")
    return ModelCard(name="a", version="1", kind="onnx", path=file)


def test_a_folder_belongs_to_a_file(tmp_path, card):
    """Hard links share it; another file, or the same one after a change, has another."""
    forms = Forms(tmp_path / "forms")
    first = forms.folder_of(card, None)
    assert first.parent == tmp_path / "forms"
    link = tmp_path / "other.onnx"
    os.link(card.path, link)
    assert forms.folder_of(dataclasses.replace(card, name="b", path=link), None) == first
    card.path.write_bytes(b"another model")
    assert forms.folder_of(card, None) != first


def test_a_link_to_nowhere_beside_a_file(tmp_path, card):
    """It is no part of the model."""
    forms = Forms(tmp_path / "forms")
    before = forms.folder_of(card, None)
    card.path.with_name("m.onnx.old").symlink_to("/nowhere")
    assert forms.folder_of(card, None) == before is not None


def test_who_has_none(tmp_path, card, monkeypatch):
    """Kinds that are not prepared, files that are not there, a place that is not this user's alone."""
    forms = Forms(tmp_path / "forms")
    assert forms.folder_of(dataclasses.replace(card, kind="sklearn"), None) is None
    assert forms.folder_of(dataclasses.replace(card, path=tmp_path / "none"), None) is None
    assert forms.folder_of(dataclasses.replace(card, path=None), None) is None
    assert Forms(card.path / "forms").folder_of(card, None) is None
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert Forms(tmp_path / "open").folder_of(card, None) is None
    assert forms.folder_of(card, None) is not None
    monkeypatch.setattr(prepared, "MOST_BYTES", 25)
    assert forms.folder_of(card, None) is None  # it is as large as all may be


def test_the_least_recently_used_go(tmp_path, monkeypatch, card):
    """Where all together take too much; what nobody has finished goes, too."""
    monkeypatch.setattr(prepared, "MOST_BYTES", 250)
    forms = Forms(tmp_path)
    used = forms.folder_of(card, None)
    now_s = time.time()
    for name, age_s in (
        (used.name, 500),
        ("old", 400),
        ("new", 300),
        (".new-1", 10),
        (".new-2", 9000),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "weights.bin").write_bytes(b"x" * (100 if name[0] != "." else 1))
        os.utime(folder, (now_s - age_s, now_s - age_s))
    assert forms.folder_of(card, None) == used  # which uses it
    forms.trim()
    assert {folder.name for folder in tmp_path.iterdir() if folder.is_dir()} == {
        used.name,
        "new",
        ".new-1",
    }
