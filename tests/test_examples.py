"""Every example runs as its page says."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import runpy
import subprocess
import sys

import optuna
import pytest

from tests.fakes import searches, studies
from tests.test_containers import LANGUAGES
from tuner.store import records

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a script as `python SCRIPT ARGUMENT...` does, in this process; return what it prints."""

    def run_script(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / script), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_every_example_has_a_test_and_a_line_in_the_page() -> None:
    """No example stands in the folder unexplained or untested."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    own = pathlib.Path(__file__).read_text(encoding="utf-8")
    for example in EXAMPLES:
        assert f"]({example})" in page
        assert f"examples/{example}" in own
    for folder in (ROOT / "examples").glob("container_*"):
        assert f"]({folder.name}/README.md)" in page
        assert folder.name in LANGUAGES


def test_the_weights_of_the_containers_are_those_of_the_bundled_model(run, tmp_path) -> None:
    """examples/linear_weights.py writes ten rows of weights and ten offsets."""
    run("examples/linear_weights.py", str(tmp_path / "weights.bin"))
    assert (tmp_path / "weights.bin").stat().st_size == 4 * 10 * (3 * 32 * 32 + 1)


def test_a_sampler_finds_the_lowest_point_in_a_foreign_study(run) -> None:
    """examples/own_study.py ends beside the bowl's lowest point: a height of 2 at most."""
    verbosity = optuna.logging.get_verbosity()
    try:
        printed = run("examples/own_study.py")
    finally:
        optuna.logging.set_verbosity(verbosity)
    found = re.search(r"lowest ([\d.e-]+) at .* after 16 trials", printed)
    assert found, printed
    assert float(found[1]) <= 2.0


def test_tables_of_a_study_are_printed(run, tmp_path) -> None:
    """examples/study_in_notebook.py prints a line for each connection of the first launch."""
    folder, _, _ = searches.searched(tmp_path)
    kept = studies.study().records["default"]
    folder.write_bytes("trials/0/requests.npz", records.encode(kept))
    printed = run("examples/study_in_notebook.py", str(folder.path))
    assert printed.startswith("no verdict yet")
    assert "batching.max_size" in printed
    assert len(re.findall(r"^\d+ +\d+\.0 ", printed, re.MULTILINE)) == len(set(kept.connection))


@pytest.mark.slow
def test_a_class_of_your_own_answers_what_the_page_shows() -> None:
    """examples/text_length.py, served as a file, answers the page's request with 6 and 8."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    body = re.search(r"curl .* -d '(.*)'", page)
    assert body
    command = [sys.executable, "-m", "serving", "--model", "examples/text_length.py:TextLength"]
    server = subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.communicate(timeout=10)[1]
        connection = http.client.HTTPConnection("127.0.0.1", json.loads(line)["port"], timeout=30)
        connection.request("POST", "/v2/models/text_length/infer", body[1])
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
    finally:
        server.terminate()
        server.communicate(timeout=30)
    assert answer.status == 200, said
    assert [(output["name"], output["data"]) for output in said["outputs"]] == [("length", [6, 8])]
    assert server.returncode == 0
