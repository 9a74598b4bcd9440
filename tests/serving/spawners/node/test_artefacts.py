"""Files on other machines: sent once, checked, laid out at their paths."""

import contextlib
import os
import pathlib
import shutil

import pytest

from serving.spawners.node import artefacts
from serving.spawners.node.artefacts import ArtefactError, ArtefactStore, ManifestMaker
from serving.system import process_identity


@pytest.fixture(name="store")
def _store(tmp_path):
    return ArtefactStore(tmp_path / "store")


@pytest.fixture(name="model")
def _model(tmp_path):
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights").write_bytes(b"weights")
    (folder / "deep" / "same").write_bytes(b"weights")
    program = folder / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (folder / "gone").symlink_to("/nowhere")
    return folder


def _send(store, manifest):
    """Send what is lacking; return how many contents that were."""
    paths = {entry.digest: path for path, entry in manifest.items()}
    lacking = store.lacking(manifest)
    for digest in lacking:
        with store.receive(digest) as take:
            take(pathlib.Path(paths[digest]).read_bytes())
    return len(lacking)


def test_files_have_their_paths_below_the_folder(store, model):
    """With what may be run, and without links that lead nowhere."""
    manifest = ManifestMaker().make([model])
    assert _send(store, manifest) == 2
    root = store.lay_out(manifest).folder
    laid = root / model.relative_to("/")
    assert (laid / "weights").read_bytes() == (laid / "deep" / "same").read_bytes() == b"weights"
    assert (laid / "program").stat().st_mode & 0o100
    assert not (laid / "weights").stat().st_mode & 0o300
    assert not root.parent.stat().st_mode & 0o077
    assert not (laid / "gone").exists()


def test_nothing_is_sent_twice(store, model):
    """Neither for a second model with the same content, nor for the same model again."""
    maker = ManifestMaker()
    manifest = maker.make([model])
    _send(store, manifest)
    root = store.lay_out(manifest).folder
    assert _send(store, maker.make([model / "weights"])) == 0
    assert store.lay_out(manifest).folder == root
    (model / "weights").write_bytes(b"others")
    changed = maker.make([model])
    assert _send(store, changed) == 1
    assert store.lay_out(changed).folder != root


def test_another_content_is_refused(store, model):
    """Nothing is kept of it."""
    (entry, *_) = ManifestMaker().make([model / "weights"]).values()
    with pytest.raises(ArtefactError, match="digest"), store.receive(entry.digest) as take:
        take(b"weighty")
    assert store.lacking({"/x": entry}) == {entry.digest}


@pytest.mark.parametrize("path", ["relative", "/a/../../etc", "/a/\0b", ""])
def test_a_path_that_leaves_its_folder_is_refused(path):
    """Whatever a gateway sends."""
    with pytest.raises(ArtefactError, match="absolute path"):
        artefacts.from_json({path: ["a" * 64, 1, False]})


@pytest.mark.parametrize("digest", ["../../etc/passwd", "a" * 63, "/" * 64])
def test_a_digest_is_one(store, digest):
    """It names a file of the store."""
    with pytest.raises(ArtefactError, match="SHA-256"):
        store.lacking({"/x": artefacts.FileEntry(digest, 1)})


def test_what_nobody_used_for_longest_goes_first(tmp_path, model):
    """What is laid out for a model in use stays."""
    store = ArtefactStore(tmp_path / "store", max_bytes=0)
    maker = ManifestMaker()
    used, unused = maker.make([model / "weights"]), maker.make([model / "program"])
    for manifest in (used, unused):
        _send(store, manifest)
    held = store.lay_out(used)
    store.lay_out(unused).release()
    other = ArtefactStore(tmp_path / "store", max_bytes=0)  # of another server's agent
    other.trim()
    assert not store.lacking(used)
    assert store.lacking(unused)
    held.release()
    other.trim()
    assert store.lacking(used)


def test_containers_of_another_user_can_read_what_is_laid_out(store, model, monkeypatch):
    """Whatever the modes of the gateway's files, and the agent's umask."""
    (model / "weights").chmod(0o600)
    before = os.umask(0o077)
    try:
        manifest = ManifestMaker().make([model])
        _send(store, manifest)
        root = store.lay_out(manifest).folder
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*")):
        wanted = 0o005 if path.is_dir() or path.name == "program" else 0o004
        assert path.stat().st_mode & 0o007 == wanted, path


def test_a_removal_that_is_cut_short_leaves_nothing_that_looks_whole(tmp_path, model, monkeypatch):
    """The next model gets all its files."""
    store = ArtefactStore(tmp_path / "store", max_bytes=0)
    manifest = ManifestMaker().make([model])
    _send(store, manifest)
    layout = store.lay_out(manifest)
    layout.release()

    def remove_half(folder, **_options):
        next(file for file in pathlib.Path(folder).rglob("*") if file.is_file()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", remove_half)
        store.trim()
    again = ArtefactStore(tmp_path / "store")
    _send(again, manifest)
    root = again.lay_out(manifest).folder
    assert root == layout.folder
    assert {f"/{file.relative_to(root)}" for file in root.rglob("*") if file.is_file()} == set(
        manifest
    )


def test_what_is_being_laid_out_is_not_removed(tmp_path, model):
    """By the agent of another server, either."""
    store = ArtefactStore(tmp_path / "store", max_bytes=0)
    manifest = ManifestMaker().make([model])
    _send(store, manifest)
    name = f"{process_identity.this_process().new_name()}.part"
    half = tmp_path / "store" / "layouts" / name
    half.mkdir()
    store.trim()
    assert half.is_dir()


def test_what_a_killed_agent_left_half_is_removed(tmp_path):
    """And what a living one is writing stays."""
    store = ArtefactStore(tmp_path / "store")
    gone = process_identity.ProcessIdentity(
        pid=2**22 - 1, started_ticks=1, namespace=process_identity.this_process().namespace
    )
    dead = tmp_path / "store" / "contents" / f"{gone.new_name()}.part"
    dead.write_bytes(b"half")
    with contextlib.suppress(ArtefactError), store.receive("a" * 64) as take:
        take(b"half")
        store.trim()
        assert [each.name != dead.name for each in dead.parent.iterdir()] == [True]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    """It names the file."""
    with pytest.raises(ArtefactError, match=r"/nowhere/weights cannot be read"):
        ManifestMaker().make([pathlib.Path("/nowhere/weights")])
