"""Files that are laid out for containers: as they are, for as long as they are wanted, and nobody else's touched."""

import errno
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import threading
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import NotReady
from serving.spawners.docker.staging import StagingFolder
from serving.system import process_identity
from serving.wire.staged_path import staged_path

OTHER_SYSTEM = pathlib.Path("/dev/shm")


@pytest.fixture(name="shelf")
def _shelf(tmp_path):
    return StagingFolder(tmp_path / "shelf")


@pytest.fixture(name="models")
def _models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture(name="elsewhere")
def _elsewhere(tmp_path):
    """A folder on another file system."""
    if not OTHER_SYSTEM.is_dir() or OTHER_SYSTEM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip(f"{OTHER_SYSTEM} is no file system of its own here")
    folder = pathlib.Path(tempfile.mkdtemp(dir=OTHER_SYSTEM))
    yield folder
    shutil.rmtree(folder)


def seen(shelf, root, path):
    """Where a container would find a path, as this process does."""
    return staged_path(path, staged_path(root, shelf.folder))


def names(folder):
    return [path.name for path in folder.iterdir()]


def is_same(one, other):
    return one.stat().st_ino == other.stat().st_ino and one.stat().st_dev == other.stat().st_dev


def test_a_file_is_a_link_and_follows_what_is_written_in_place(shelf, models):
    """It takes no room; one that was replaced is another file, as in a mount of the old one."""
    file = models / "m.onnx"
    file.write_bytes(b"one")
    root = shelf.add([file])
    laid = seen(shelf, root, file)
    assert is_same(laid, file)
    file.write_bytes(b"two")
    assert laid.read_bytes() == b"two"
    new = models / "new"
    new.write_bytes(b"three")
    new.replace(file)
    assert laid.read_bytes() == b"two"
    assert seen(shelf, shelf.add([file]), file).read_bytes() == b"three"


def test_a_link_that_is_given_is_followed_and_links_in_a_folder_stay(shelf, models):
    """Also one that leads out, whose target is in no container."""
    file = models / "v3.onnx"
    file.write_bytes(b"x")
    current = models / "current.onnx"
    current.symlink_to("v3.onnx")
    (models / "out").symlink_to("/etc")
    root = shelf.add([current])
    laid = seen(shelf, root, current)
    assert not laid.is_symlink()
    assert is_same(laid, file)
    root = shelf.add([models])
    assert seen(shelf, root, current).readlink() == pathlib.Path("v3.onnx")
    assert seen(shelf, root, models / "out").readlink() == pathlib.Path("/etc")


def test_nothing_is_laid_where_a_link_of_a_folder_leads(shelf, models, tmp_path):
    """A model's folder has a link to where another of its files lies: that one's place stays as it was."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "w.bin").write_bytes(b"w")
    (models / "linked").symlink_to(other)
    root = shelf.add([models, models / "linked" / "w.bin", models / "linked"])
    assert names(other) == ["w.bin"]
    laid = seen(shelf, root, models / "linked")
    assert not laid.is_symlink()
    assert is_same(laid / "w.bin", other / "w.bin")


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads all")
def test_rights_are_those_of_the_files(shelf, models):
    """And of a model's own folders; folders above these can be entered by the containers' user, whatever the umask."""
    file = models / "secret"
    file.write_bytes(b"x")
    file.chmod(0o600)
    models.chmod(0o500)
    before = os.umask(0o077)
    try:
        root = shelf.add([models])
    finally:
        os.umask(before)
    laid = seen(shelf, root, models)
    assert stat.S_IMODE((laid / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(laid.stat().st_mode) == 0o700  # the owner can remove what is in it
    above = laid.parent
    while above != shelf.folder:
        assert stat.S_IMODE(above.stat().st_mode) == 0o755
        above = above.parent
    shelf.remove(root)
    assert names(shelf.folder) == []


def test_copies_where_no_link_can_be_made(shelf, elsewhere):
    """Rights and times are the file's; what two models have in common is there once, and stays with the last one."""
    file = elsewhere / "m.onnx"
    file.write_bytes(b"x" * 100_000)
    file.chmod(0o640)
    os.utime(file, ns=(1, 1_000_000_007))
    first, second = shelf.add([elsewhere]), shelf.add([file])
    laid, again = seen(shelf, first, file), seen(shelf, second, file)
    assert laid.read_bytes() == file.read_bytes()
    assert not is_same(laid, file)
    assert is_same(laid, again)
    facts = laid.stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime_ns) == (0o640, 1_000_000_007)
    shelf.remove(first)
    assert again.read_bytes() == file.read_bytes()
    shelf.remove(second)
    assert not is_same(seen(shelf, shelf.add([file]), file), file)
    file.write_bytes(b"y" * 100_000)
    assert seen(shelf, shelf.add([file]), file).read_bytes() == file.read_bytes()


def test_nothing_is_copied_without_room_for_all(shelf, elsewhere, monkeypatch):
    """The reason has both sizes; nothing is left, and what was copied before counts no more."""
    for name in "ab":
        (elsewhere / name).write_bytes(name.encode() * 3 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=5 * 2**20))
    with pytest.raises(OSError, match=r"6\.0 MiB must be copied, but 5\.0 MiB are free") as caught:
        shelf.add([elsewhere])
    assert caught.value.errno == errno.ENOSPC
    assert names(shelf.folder) == []
    kept = shelf.add([elsewhere / "a"])
    root = shelf.add([elsewhere / "a", elsewhere / "b"])
    assert is_same(seen(shelf, root, elsewhere / "a"), seen(shelf, kept, elsewhere / "a"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=0))
    assert names(seen(shelf, shelf.add([elsewhere]), elsewhere))


def test_a_hole_stays_one(shelf, elsewhere):
    """A copy takes no more room than its file."""
    file = elsewhere / "sparse"
    with file.open("wb") as written:
        written.truncate(20 * 2**20)
        written.seek(4 * 2**20)
        written.write(b"x")
    laid = seen(shelf, shelf.add([file]), file)
    assert laid.read_bytes() == file.read_bytes()
    assert laid.stat().st_blocks * 512 < 4 * 2**20


def test_folders_that_are_nested_too_deeply_are_refused(shelf, models):
    """With a reason, as other files that cannot be laid out."""
    before, fd = os.getcwd(), os.open(models, os.O_RDONLY)  # noqa: PTH109
    try:
        os.fchdir(fd)
        for _ in range(1500):
            os.mkdir("x")  # noqa: PTH102 - the path would be too long
            os.chdir("x")
        os.chdir(before)
        with pytest.raises(OSError, match=r"nested too deeply|File name too long"):
            shelf.add([models])
        assert names(shelf.folder) == []
    finally:
        os.chdir(before)
        os.close(fd)
        subprocess.run(
            ["rm", "-rf", models / "x"], check=True
        )  # Python's own finds it too deep, too


class Usage(NamedTuple):
    """Of a file system."""

    free: int


def test_what_is_no_file_and_what_gateways_make_is_left_out(shelf, models):
    """A model may lie beside the runtime folders of gateways, in which the shelf itself is."""
    (models / "m.py").write_text("")
    os.mkfifo(models / "pipe")
    name = process_identity.this_process().new_name()
    (models / name).mkdir()
    (models / name / "inner").write_text("")
    root = shelf.add([models])
    assert names(seen(shelf, root, models)) == ["m.py"]


def test_what_is_not_there_leaves_nothing(shelf, models):
    """The first file was laid already."""
    (models / "a").write_text("")
    with pytest.raises(FileNotFoundError):
        shelf.add([models / "a", models / "b"])
    assert names(shelf.folder) == []


def test_a_shelf_that_is_closed_takes_nothing_more(shelf, models):
    """Also from who is at it in that moment: then the folder can be removed."""
    for number in range(2000):
        (models / str(number)).write_text("")
    refused = []

    def lay():
        try:
            while True:
                shelf.add([models])
        except NotReady as error:
            refused.append(error)

    thread = threading.Thread(target=lay)
    thread.start()
    while not any(shelf.folder.rglob("*")):
        pass
    shelf.close()
    shutil.rmtree(shelf.folder)
    thread.join(20)
    assert len(refused) == 1
    assert not shelf.folder.exists()


@given(
    st.lists(
        st.one_of(
            st.sets(st.sampled_from(["a", "b/c", "b/d", "b", "e/f/g"]), min_size=1),
            st.integers(0, 9),
        ),
        max_size=12,
    )
)
def test_each_model_sees_its_own_and_the_last_one_leaves_nothing(steps):
    """Models come with any of these files and folders, and go in any order."""
    with tempfile.TemporaryDirectory() as name:
        models = pathlib.Path(name, "models")
        for path in ("a", "b/c", "b/d", "e/f/g"):
            (models / path).parent.mkdir(parents=True, exist_ok=True)
            (models / path).write_text(path)
        shelf = StagingFolder(pathlib.Path(name, "shelf"))
        living = []
        for step in steps:
            if isinstance(step, set):
                root = shelf.add([models / path for path in sorted(step)])
                files = {f for f in ("a", "b/c", "b/d", "e/f/g") if f in step or f[0] in step}
                living.append((root, files))
            elif living:
                root, _ = living.pop(step % len(living))
                shelf.remove(root)
            for root, files in living:
                top = seen(shelf, root, models)
                found = {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()}
                assert found == files
            for path in ("a", "b/c", "b/d", "e/f/g"):
                assert (models / path).stat().st_nlink == 1 + sum(path in f for _, f in living)
        for root, _ in living:
            shelf.remove(root)
        assert names(shelf.folder) == []
