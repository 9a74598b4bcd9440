"""`--engine mosec` and `--engine triton`: a small real study of each, as its README runs it."""

from __future__ import annotations

import json
import pathlib
import shlex

import pytest

from tests.fakes.commands import tune
from tuner.engines import engine_lookup

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-engines"
IS_INSTALLED = (ENVIRONMENT / ".installed").exists()
SHORT = ("--seconds", "0.4", "--warmup", "0.1", "--pairs", "2", "--trials", "3", "--stop-ei", "0")

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not IS_INSTALLED, reason="mosec and Triton: make install-engines"),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["mosec", "triton"])
def test_a_study_of_a_real_server(tmp_path: pathlib.Path, name: str) -> None:
    """Every launch is a server that answers rightly; afterwards none of its processes is left."""
    engine = f"{name}:{ENVIRONMENT / 'bin' / 'python'}"
    arguments = ("--model", "resnet", "--concurrency", "8", "--engine", engine)
    done = tune(tmp_path, *arguments, *SHORT, "--study", name, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["engine"] == engine
    assert (answer["trials"], answer["failed_trials"]) == (3, 0)
    starts = answer["failure_counts"]
    assert all(tally["failed"] == 0 for tally in starts.values()), starts
    (checked,) = [note for note in answer["notes"] if note.startswith("answers checked")]
    assert int(checked.split()[2]) > 50, checked
    assert not left(engine_lookup.FOLDER / name)


def left(folder: pathlib.Path) -> list[str]:
    """Command lines of processes that come from an engine's folder, or whose program is in the environment."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            program = (process / "exe").readlink()
        except OSError:
            continue
        if str(folder) in words or program.is_relative_to(ENVIRONMENT.resolve()):
            found.append(words.replace("\0", " "))
    return found


@pytest.mark.parametrize("name", ["mosec", "triton"])
def test_the_readme_runs_it(name: str) -> None:
    """Its `tune` line names the engine, its environment, and the model."""
    text = (engine_lookup.FOLDER / name / "README.md").read_text(encoding="utf-8")
    (line,) = [
        line.strip() for line in text.splitlines() if line.strip().startswith("tune --model")
    ]
    words = shlex.split(line)
    assert words[words.index("--engine") + 1] == f"{name}:.venv-engines/bin/python"
    assert words[words.index("--model") + 1] == "resnet"
