"""What a signal leaves, in words."""

from __future__ import annotations

import pathlib

import pytest

from tuner.errors import Interrupted
from tuner.store.run_folder import RunFolder
from tuner.study import interruption


def interrupted(folder: RunFolder | None, kept: str = interruption.EVERYTHING) -> str:
    """What is said of a signal."""
    with pytest.raises(Interrupted) as caught, interruption.resumable(folder, kept):
        raise KeyboardInterrupt
    return str(caught.value)


def test_without_a_study_nothing_was_kept(tmp_path: pathlib.Path) -> None:
    """A command without a study, and a study whose folder is not there yet."""
    assert interrupted(None) == "interrupted; nothing was saved"
    assert interrupted(RunFolder(tmp_path, "s")) == "interrupted; nothing was saved"


def test_from_the_folder_on_the_way_to_go_on_is_said(tmp_path: pathlib.Path) -> None:
    """As soon as the folder is a study, whatever has been measured by then."""
    folder = RunFolder(tmp_path, "s")
    folder.create({}, {})
    text = interrupted(folder, interruption.NOT_BEGUN)
    assert text == (
        f"interrupted; nothing was measured yet; resume with: tune resume s --runs-dir {tmp_path}"
    )


def test_the_command_can_be_pasted_into_a_shell(tmp_path: pathlib.Path) -> None:
    """Blanks are quoted; a storage is named where its password was not kept, and only there."""
    folder = RunFolder(tmp_path / "my runs", "s")
    folder.create({"store": {"storage": "postgresql://u:***@host/db"}}, {})
    storage = "--storage 'postgresql://u:***@host/db'"
    command = interruption.resume_command(folder)
    assert command == f"tune resume s --runs-dir '{tmp_path}/my runs' {storage}"
    plain = RunFolder(tmp_path, "p")
    plain.create({"store": {"storage": "sqlite:///all.db"}}, {})
    assert interruption.resume_command(plain) == f"tune resume p --runs-dir {tmp_path}"


def test_in_a_file_the_command_works_from_anywhere(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative folder of studies is named as it stands on this machine."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(pathlib.Path("runs"), "s")
    folder.create({}, {})
    assert interruption.resume_command(folder) == "tune resume s"
    command = interruption.resume_command(folder, from_anywhere=True)
    assert command == f"tune resume {tmp_path}/runs/s"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"trials": 0}, "no trial has ended"),
        ({"trials": 1}, "1 trial is saved"),
        ({"trials": 4}, "4 trials are saved"),
        (
            {"trials": 2, "cut_off": [2]},
            "2 trials are saved, and trial 2, which was running, is not",
        ),
        ({"trials": 4, "evaluations": 5}, "the search and 5 evaluations of the verification"),
    ],
)
def test_what_is_kept_is_counted(counts: dict[str, int], said: str) -> None:
    """Trials while it searches, round evaluations while it verifies."""
    assert said in interruption.describe_saved(**counts)
