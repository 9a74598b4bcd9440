"""`tune pool`: a scenario file in, figures that add up out."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tuner.cli import main

TEXT = """
seconds: 2
memory_pages: 21
concurrent_loads: true
models:
  hot: {profile: resnet50-v100}
  rare: {copies: 20, profile: resnet50-v100}
traffic:
  hot: {rate: 100, deadline_ms: 50}
  rare: {rate: 200, deadline_ms: {first: 50, factor: 2, every_s: 1}}
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "pool.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_figures_add_up(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pool", str(file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["streams"]) == {"hot", "rare"}
    for one in data["streams"].values():
        assert one["admitted"] == one["in_time"] + one["late"] + sum(one["dropped"].values())
        assert one["requests"] == one["admitted"] + sum(one["refused_at_once"].values())
    assert set(data["by_deadline_ms"]["rare"]) == {"50", "100"}
    in_time = sum(one["in_time"] for one in data["streams"].values())
    assert data["goodput_per_s"] == pytest.approx(in_time / data["seconds"])


@pytest.mark.parametrize("columns", ["80", "200"])
def test_a_person_reads_why_requests_were_refused(
    file: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.main(["pool", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"rare, refused: [\d,]+ its model cannot be loaded in time", text)
    assert "rare: deadline" in text
    assert "of their time in batches" in text


def test_an_emulation_without_jitter_says_what_that_means(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["pool", str(file)]) == 0
    assert "note: durations do not vary (emulated.jitter is 0)" in capsys.readouterr().out
    file.write_text(TEXT + "emulated: {jitter: 0.01}\n", encoding="utf-8")
    assert main.main(["pool", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_a_wrong_file_is_one_line(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(TEXT.replace("rate: 100", "rates: 100"), encoding="utf-8")
    assert main.main(["pool", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "traffic.hot.rates" in line
    assert "did you mean 'rate'" in line
