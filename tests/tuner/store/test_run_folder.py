"""The folder of a study: whole files or none, one owner, and no deletion of what is not ours."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tuner.errors import StorageFailed, StudyBusy, UnknownStudy, UsageError
from tuner.store import run_folder
from tuner.store.run_folder import RunFolder, storage_errors


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs", "one")
    made.create({"target": {"model": "echo"}}, {"cores": 2})
    return made


def test_a_created_folder_is_a_study_and_gives_back_its_settings(folder: RunFolder) -> None:
    """A new folder is recognised, listed, and holds the settings and the environment."""
    folder.check_writable()
    assert [path.name for path in folder.runs_dir.iterdir()] == ["one"]
    assert folder.is_study()
    assert folder.settings() == {"target": {"model": "echo"}}
    assert folder.read_json("environment.json") == {"cores": 2}
    assert run_folder.known_studies(folder.runs_dir) == ("one",)


def test_a_value_that_is_there_twice_is_read_back(tmp_path: pathlib.Path) -> None:
    """Each is written out."""
    same = [1, 2]
    folder = RunFolder(tmp_path, "one")
    folder.create({"a": same, "b": same}, {})
    assert folder.settings() == {"a": same, "b": same}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 2001-99-99", "holds a value that cannot be read (month must be in 1..12)"),
        ("a: !!timestamp x", "holds a value that cannot be read"),
        ("a: " + "[" * 5000, "nested deeper than 32"),
        ("a: &a [1]\nb: [*a, *a]", "anchors and aliases"),
        ("a: " + "b" * 2**20, "larger than 1 MiB"),
        ("a: [1", "cannot be read: while parsing"),
        ("[1]", "holds list"),
    ],
)
def test_settings_that_cannot_be_read_are_one_line(folder: RunFolder, text: str, said: str) -> None:
    """With the path, whatever the parser made of it."""
    folder.write_text("settings.yaml", f"{run_folder.MARK}\n{text}\n")
    with pytest.raises(UsageError) as caught:
        folder.settings()
    assert str(caught.value).startswith(f"{folder.path}/settings.yaml ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "holds list, expected an object"),
        ("null", "holds NoneType, expected an object"),
        ("{", "cannot be read: Expecting property name"),
        ("[" * 100_000, "cannot be read: "),
    ],
)
def test_json_that_cannot_be_read_is_one_line(folder: RunFolder, text: str, said: str) -> None:
    """With the path; a file that is not there is None."""
    folder.write_text("verdict.json", text)
    with pytest.raises(UsageError) as caught:
        folder.read_json("verdict.json")
    assert str(caught.value).startswith(f"{folder.path}/verdict.json ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert folder.read_json("none.json") is None


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 100 bytes: the kernel refuses as it does on a full disk.

    Only around what is tested: the limit holds for the test runner's own output, too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_leaves_the_old_file_and_no_rest(folder: RunFolder) -> None:
    """Where a file cannot be written whole, the error is one line and the old file stands."""
    folder.write_json("verdict.json", {"ratio": 1})
    with full_disk(), pytest.raises(StorageFailed, match="cannot be written: File too large"):
        folder.write_json("verdict.json", {"ratio": list(range(1000))})
    assert folder.read_json("verdict.json") == {"ratio": 1}
    assert [path for path in folder.path.iterdir() if path.suffix == ".partial"] == []


def test_creation_that_fails_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    """Where the folder's parent is a file, the error names the path and nothing is made."""
    (tmp_path / "runs").write_text("not a folder", encoding="utf-8")
    with pytest.raises(StorageFailed, match=r"cannot be written: .*; choose another --runs-dir$"):
        RunFolder(tmp_path / "runs", "one").create({}, {})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_only_a_full_disk_needs_space(number: int) -> None:
    """Also one that is full for this user."""
    with (
        pytest.raises(StorageFailed, match=r"; free space or choose another --out$"),
        storage_errors("a", option="--out"),
    ):
        raise OSError(number, os.strerror(number))


def test_a_study_is_deleted_with_its_files(folder: RunFolder) -> None:
    """`delete` removes what a study wrote, folders included."""
    folder.write_bytes("trials/0/requests.npz", b"x")
    (folder.path / "best.yaml.partial").write_bytes(b"rest of a killed process")
    folder.delete()
    assert not folder.exists()


def test_what_is_not_ours_is_not_deleted(folder: RunFolder, tmp_path: pathlib.Path) -> None:
    """Neither a folder that is no study nor a study with a user's file in it is deleted."""
    (folder.path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        folder.delete()
    other = tmp_path / "runs" / "other"
    other.mkdir()
    with pytest.raises(UsageError, match="not a study folder"):
        RunFolder(tmp_path / "runs", "other").delete()
    assert (folder.path / "thesis.tex").exists()
    assert other.exists()


def test_a_study_has_one_owner(folder: RunFolder) -> None:
    """A second holder is refused by the number of the first process; after it, the lock is free."""
    with folder.hold_lock(), pytest.raises(StudyBusy, match=str(os.getpid())), folder.hold_lock():
        pytest.fail("a second holder was let in")
    with folder.hold_lock():
        pass


def test_a_lock_that_is_held_for_a_moment_can_be_waited_for(folder: RunFolder) -> None:
    """Until it is free, and no longer than was said."""
    with contextlib.ExitStack() as held:
        held.enter_context(folder.hold_lock())
        with pytest.raises(StudyBusy), folder.hold_lock(wait_s=0.06):
            pytest.fail("a second holder was let in")
        timer = threading.Timer(0.1, held.close)
        timer.start()
        with folder.hold_lock(wait_s=30.0):
            timer.join()


def test_an_error_of_the_study_is_not_one_of_its_lock(folder: RunFolder) -> None:
    """What fails while the lock is held keeps its name; a lock that cannot be written is said."""
    with pytest.raises(FileNotFoundError, match="model"), folder.hold_lock():
        pathlib.Path("/nowhere/model.onnx").read_bytes()
    with folder.hold_lock():
        pass
    (folder.path / "lock").unlink()
    (folder.path / "lock").mkdir()
    with pytest.raises(StorageFailed, match="lock cannot be written"), folder.hold_lock():
        pytest.fail("held without a lock")


def test_the_lock_ends_with_a_killed_process(folder: RunFolder) -> None:
    """A holder that is killed leaves no lock behind."""
    code = (
        "import pathlib, sys, time\n"
        "from tuner.store.run_folder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1]), 'one').hold_lock():\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.runs_dir)], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StudyBusy), folder.hold_lock():
            pass
        process.kill()
    with folder.hold_lock():
        pass


def test_studies_are_found_by_name_and_by_path(folder: RunFolder) -> None:
    """A name is looked up in the runs folder, a path is taken as it is, a miss is told."""
    assert run_folder.find(folder.runs_dir, "one").path == folder.path
    assert run_folder.find(pathlib.Path("elsewhere"), str(folder.path)).name == "one"
    with pytest.raises(UnknownStudy, match="did you mean 'one'"):
        run_folder.find(folder.runs_dir, "onee")
