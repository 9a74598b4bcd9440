"""Folders of prepared forms: one for each content, private, and bounded."""

import os
import shutil
import time

import pytest

from serving import machine, prepared
from serving.prepared import Forms
from serving.replica.fingerprint import identity_of
from tests.fakes.adding import adding


@pytest.fixture(name="file")
def _file(tmp_path):
    return adding(tmp_path / "m.onnx", 1.0, items=8)


def folder_of(forms, file, kind="onnx"):
    return forms.folder_of(kind, identity_of(kind, file))


def test_a_folder_belongs_to_a_content(tmp_path, file, monkeypatch):
    """Copies share it; other content has another, with the same size and time, too, and so has another processor."""
    forms = Forms(tmp_path / "forms")
    first = folder_of(forms, file)
    assert first.parent == tmp_path / "forms"
    twin = tmp_path / "other.onnx"
    shutil.copy(file, twin)
    assert folder_of(forms, twin) == first
    was = file.stat()
    adding(file, 2.0, items=8)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (file.stat().st_ino, file.stat().st_size) == (was.st_ino, was.st_size)
    assert folder_of(forms, file) != first
    monkeypatch.setattr(machine, "cpu_digest", lambda: "another")
    assert folder_of(forms, twin) != first


def test_who_has_none(tmp_path, file, monkeypatch, caplog):
    """Kinds that are not prepared, files that are not there, weights beside the file, where there is no room."""
    forms = Forms(tmp_path / "forms")
    assert folder_of(forms, file, "sklearn") is None
    assert folder_of(forms, tmp_path / "none") is None
    assert folder_of(forms, None) is None
    assert folder_of(forms, adding(tmp_path / "n.onnx", 1.0, weights="n.bin")) is None
    assert not caplog.records
    assert folder_of(Forms(file / "forms"), file) is None
    assert folder_of(forms, file) is not None
    monkeypatch.setattr(prepared, "MOST_BYTES", 25)
    shutil.rmtree(tmp_path / "forms")
    caplog.clear()
    for _ in range(2):
        assert folder_of(forms, file) is None
    (reason,) = [record.reason for record in caplog.records]
    assert "has no room" in reason  # and is told once


@pytest.mark.parametrize("which", ["", "forms", "forms/FORM"])
@pytest.mark.parametrize("made", ["open", "foreign"])
def test_nothing_is_used_that_others_may_have_written(tmp_path, file, caplog, which, made):
    """Whichever folder on the way it is, and though the form is there already."""
    home = tmp_path / "home"
    form = folder_of(Forms(home / "forms"), file)
    form.mkdir(mode=0o700)
    assert folder_of(Forms(home / "forms"), file) == form
    folder = home / which.replace("FORM", form.name)
    if made == "open":
        folder.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root gives files away")
    else:
        os.chown(folder, 65534, 65534)
    assert folder_of(Forms(home / "forms"), file) is None
    assert f"{folder} belongs to user" in caplog.records[-1].reason


def test_a_link_is_followed_to_where_it_leads(tmp_path, file):
    """What is checked is what is used; a form is never a link."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    forms = Forms(tmp_path / "link" / "forms")
    form = folder_of(forms, file)
    assert form.parent == tmp_path / "real" / "forms"
    form.symlink_to(tmp_path)
    assert folder_of(forms, file) is None


def test_the_least_recently_used_go(tmp_path, monkeypatch, file):
    """Where all together take too much, or a form is very old; what nobody has finished goes, too."""
    monkeypatch.setattr(prepared, "MOST_BYTES", 2500)
    forms = Forms(tmp_path / "forms")
    used = folder_of(forms, file)
    now_s = time.time()
    for name, age_s, size in (
        (used.name, 500, 1000),
        ("old", 400, 1000),
        ("new", 300, 1000),
        ("oldest", 31 * 86_400, 0),
        (".new-1", 10, 1),
        (".new-2", 9000, 1),
    ):
        folder = used.parent / name
        folder.mkdir(mode=0o700)
        (folder / "weights.bin").write_bytes(b"x" * size)
        os.utime(folder, (now_s - age_s, now_s - age_s))
    assert folder_of(forms, file) == used  # which uses it
    forms.trim()
    assert {folder.name for folder in used.parent.iterdir()} == {used.name, "new", ".new-1"}
