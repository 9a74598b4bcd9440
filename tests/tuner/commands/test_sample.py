"""`tune sample` with a real engine: rows, going on behind them, and one line for bad input."""

from __future__ import annotations

import argparse
import csv
import json
import pathlib

import pytest

from tuner import cli
from tuner.commands import sample as command

LOADS = ["--concurrency", "1,4", "--client-batch", "1,3"]
QUICK = ["--seconds", "0.4", "--warmup", "0.1"]


def sample(out: pathlib.Path, count: int, *more: str) -> int:
    """Of echo, three loads."""
    return cli.main(
        [
            "sample",
            "--model",
            "echo",
            "--count",
            str(count),
            "--out",
            str(out),
            *LOADS,
            *QUICK,
            *more,
        ]
    )


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A file of two rows."""
    path = tmp_path_factory.mktemp("sample") / "rows.csv"
    assert sample(path, 2) == 0
    return path


def test_rows_go_on_where_the_file_ends(
    begun: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third row is the third draw, whoever measured the first two; the answer is one object."""
    path = tmp_path / "rows.csv"
    before = begun.read_bytes()
    path.write_bytes(before + b"2,echo,0")
    assert sample(path, 3, "--json") == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert (answer["rows"], answer["measured"]) == (3, 1)
    assert "going on behind them" in said.err
    assert path.read_bytes().startswith(before)
    found = rows(path)
    assert {(row["concurrency"], row["client_batch"]) for row in found} <= {
        (concurrency, batch) for concurrency in ("1", "4") for batch in ("1", "3")
    }
    for row in found:
        if row["status"] == "ok":
            requests = float(row["requests"]) * int(row["client_batch"])
            per_item = 1e3 * float(row["measured_s"]) / requests
            assert float(row["time_per_item_ms"]) == pytest.approx(per_item, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--count", "0"], "--count 0: expected a whole number from 1"),
        (["--seed", "-1"], "--seed -1: expected a whole number from 0"),
        (
            ["--concurrency", "1,x"],
            "'1,x' is no list of whole numbers, expected for example 1,5,20",
        ),
        (["--concurrency", "0"], "--concurrency 0: expected a whole number from 1"),
        (["--client-batch", "0,1"], "--client-batch 0: expected a whole number from 1"),
        (["--out", "/nowhere/rows.csv"], "there is no folder /nowhere"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: str,
) -> None:
    """Said before anything starts, with exit code 2."""
    assert sample(tmp_path / "rows.csv", 1, *options) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "rows.csv").exists()


def test_a_model_without_a_space_is_told_how_to_get_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe's ranges would differ from one command to the next."""
    model = tmp_path / "mine.py"
    model.write_text("class Mine:\n    pass\n", encoding="utf-8")
    assert sample(tmp_path / "rows.csv", 1, "--model", f"{model}:Mine") == 2
    assert "`tune space`" in capsys.readouterr().err


def test_a_client_batch_needs_a_free_first_dimension(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that takes two items at a time, always, is refused in one line, by a study too."""
    model = tmp_path / "fixed.py"
    model.write_text(FIXED, encoding="utf-8")
    study = ["--model", f"{model}:Fixed", "--concurrency", "2", "--client-batch", "3"]
    assert cli.main([*study, "--runs-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "--client-batch 3: fixed takes one request at a time, whole (input 'x'" in said
    assert not (tmp_path / "runs").exists()


FIXED = """
class Fixed:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [2, 3]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2, 3]}]

    def predict_batch(self, inputs):
        return {"y": inputs["x"]}
"""


def test_everything_that_is_asked_for_is_in_the_order(tmp_path: pathlib.Path) -> None:
    """Where replicas live and how accurate the model must be, as in a study."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    line = f"--model resnet --count 1 --home docker --min-accuracy 0.9 --out {tmp_path / 'a.csv'}"
    target = command._order(parser.parse_args(line.split())).target
    assert (target.home, target.min_accuracy) == ("docker", 0.9)


def test_variants_are_drawn_where_an_accuracy_is_asked_for(tmp_path: pathlib.Path) -> None:
    """A column of its own, and none below the accuracy."""
    out = tmp_path / "rows.csv"
    assert sample(out, 3, "--model", "resnet", "--min-accuracy", "0.91") == 0
    assert {row["model.variant"] for row in rows(out)} <= {"resnet14", "resnet20"}
