"""`tune compare --table`: what it writes, and which options go with which kind of comparison."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.fakes import recorded
from tuner.cli import main


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tables") / "toy-20"
    return recorded.written(folder, recorded.table(passes=4, every=8))


def compare(tmp_path: pathlib.Path, *words: str) -> int:
    return main.main(["compare", *words, "--runs-dir", str(tmp_path / "runs")])


def test_a_comparison_on_a_table_leaves_a_page_and_its_data(
    table: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--samplers", "random,hill-climb", "--reference", "ridge", "--trials", "8"]
    words += ["--initial", "4", "--seeds", "2", "--jobs", "1", "--study", "c", "--json"]
    assert compare(tmp_path, "--table", str(table), *words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["samplers"] == ["ridge", "random", "hill-climb"]
    assert data["tables"][0]["noninferiority"][0]["budget"] == 8
    folder = tmp_path / "runs" / "c"
    assert {path.name for path in folder.iterdir()} >= {"compare.html", "compare.json"}
    kept = json.loads((folder / "compare.json").read_text())
    assert kept["tables"] == data["tables"]


def test_it_says_in_words_who_is_how_good(
    table: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--samplers", "random", "--reference", "ridge", "--trials", "8", "--initial", "4"]
    assert compare(tmp_path, "--table", str(table), *words, "--seeds", "3", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "random: mean regret" in said
    assert "ridge against random after 8:" in said
    assert "3 seeds" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "resnet"], "--model: not allowed on a recorded benchmark table"),
        (["--pairs", "4"], "--pairs: not allowed on a recorded benchmark table"),
        (["--repeats", "3"], "on a benchmark table use --seeds"),
        (["--seeds", "0"], "--seeds 0: expected a whole number from 1"),
        (["--jobs", "0"], "--jobs 0: expected a whole number from 1"),
        (["--samplers", "ridge", "--reference", "ridge"], "samplers other than the reference"),
        (["--samplers", "rigde"], "did you mean 'ridge'"),
    ],
)
def test_wrong_use_on_a_table_is_one_line(
    table: pathlib.Path,
    tmp_path: pathlib.Path,
    words: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare(tmp_path, "--table", str(table), *words) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--samplers", "random,gp"], "missing --model, --concurrency; or give --table DIR"),
        (["--model", "linear", "--concurrency", "5"], "missing --samplers"),
        (
            ["--model", "linear", "--concurrency", "5", "--samplers", "random,gp", "--seeds", "3"],
            "--seeds is only for recorded benchmark tables",
        ),
    ],
)
def test_wrong_use_without_a_table_is_one_line(
    tmp_path: pathlib.Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, *words) == 2
    assert text in capsys.readouterr().err


def test_a_folder_that_is_there_is_left_alone(
    table: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "c").mkdir(parents=True)
    assert compare(tmp_path, "--table", str(table), "--study", "c") == 2
    assert "choose another --study" in capsys.readouterr().err


def test_a_folder_that_is_no_table_leaves_nothing_behind(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, "--table", str(tmp_path / "none"), "--samplers", "random,gp") != 0
    assert "none" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
