"""The script that deploys a scenario's models, run against a server."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.export import serving
from tuner.launching.engine_process import LuthierProcess
from tuner.values.configuration import Configuration
from tuner.values.study_record import SharedModels

MODEL = """
class Model:
    '''Answers with what it is asked.'''
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    sample_inputs = {"x": [[1]]}

    def predict_batch(self, inputs):
        return inputs
"""
TOKEN = "known-to-the-operator"
ODD = 'it\'s $(touch gone) "a" \\ b  c'
"""A folder that a shell could take for more than a name."""


@pytest.fixture(name="engine", scope="module")
def _engine() -> Iterator[LuthierProcess]:
    configuration = Configuration({"scheduling.policy": "clockwork"})
    with LuthierProcess.start(None, configuration) as engine:
        yield engine


def written(folder: pathlib.Path, **groups: tuple[str, int]) -> pathlib.Path:
    shared = SharedModels(groups=groups, settings={})
    place = folder / serving.SCRIPT
    place.write_text(serving.deploy_script(shared, place, study="one", server="a server"), "utf-8")
    return place


def ran(script: pathlib.Path, port: int, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(script), f"http://127.0.0.1:{port}"],
        cwd=script.parent,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_models_are_deployed_and_a_second_run_leaves_them(
    tmp_path: pathlib.Path, engine: LuthierProcess
) -> None:
    """Copies of a bundled model, and of a file whose name a shell would take for commands."""
    folder = tmp_path / ODD
    folder.mkdir()
    file = folder / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    script = written(tmp_path, hot=("mnist", 3), rare=(f"{file}:Model", 2))
    first = ran(script, engine.facts.admin_port)
    names = ["hot-0", "hot-1", "hot-2", "rare-0", "rare-1"]
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [f"{name} is deployed" for name in names]
    assert [model["name"] for model in engine.admin.settings()["models"]] == names
    again = ran(script, engine.facts.admin_port)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines() == [f"{name} is already deployed" for name in names]
    assert not (tmp_path / "gone").exists()


def test_a_model_that_cannot_be_deployed_ends_it(
    tmp_path: pathlib.Path, engine: LuthierProcess
) -> None:
    """With the server's reason and a status that says so; the next model is not tried."""
    script = written(tmp_path, wrong=(str(tmp_path / "none.onnx"), 1), later=("mnist", 1))
    found = ran(script, engine.facts.admin_port)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("deploy.sh: wrong-0: ")
    assert "none.onnx" in found.stderr
    assert "later" not in found.stderr


def test_a_server_that_does_not_run_ends_it(tmp_path: pathlib.Path) -> None:
    found = ran(written(tmp_path, hot=("mnist", 1)), 1)
    assert found.returncode != 0
    assert "127.0.0.1 port 1" in found.stderr


def test_a_token_is_sent(tmp_path: pathlib.Path) -> None:
    """The operator's own, from the environment; it stands in no list of processes."""
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    token.chmod(0o600)
    configuration = Configuration(
        {"scheduling.policy": "clockwork", "server.admin_token_file": str(token)}
    )
    script = written(tmp_path, hot=("mnist", 1))
    with LuthierProcess.start(None, configuration) as engine:
        refused = ran(script, engine.facts.admin_port)
        assert (refused.returncode, refused.stderr.rstrip()[-3:]) == (1, "401")
        found = ran(script, engine.facts.admin_port, LUTHIER_ADMIN_TOKEN=TOKEN)
        assert (found.returncode, found.stdout) == (0, "hot-0 is deployed\n"), found.stderr


def test_the_token_that_the_server_has_made_is_found(tmp_path: pathlib.Path) -> None:
    """By the port, among this user's files; where it is not there the server refuses."""
    script = written(tmp_path, found=("mnist", 1))
    nowhere = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    with LuthierProcess.start(None, Configuration({"scheduling.policy": "clockwork"})) as engine:
        refused = ran(script, engine.facts.admin_port, **nowhere)
        assert (refused.returncode, refused.stderr.rstrip()[-3:]) == (1, "401")
        told = ran(script, engine.facts.admin_port)
        assert (told.returncode, told.stdout) == (0, "found-0 is deployed\n"), told.stderr


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
        st.tuples(st.text(), st.integers(1, 3)),
        max_size=3,
    ),
    st.text(),
)
def test_no_name_becomes_a_command(groups: dict[str, tuple[str, int]], words: str) -> None:
    """Beside the functions there are comments, and one call for each group with three words."""
    shared = SharedModels(groups=groups, settings={})
    text = serving.deploy_script(
        shared, pathlib.PurePath("/a", "deploy.sh"), study=words, server=words
    )
    head, _, rest = text.partition("set -eu\n")
    assert all(line.startswith("#") for line in head.splitlines())
    calls = rest.rpartition("\n}\n")[2].strip().splitlines()
    assert len(calls) == len(groups)
    shell = shutil.which("sh")
    assert shell is not None
    told = subprocess.run(
        [shell, "-c", 'deploy() { printf \'%s\\0\' "$#" "$2"; }\n' + "\n".join(calls)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "".join(f"3\0{name}\0" for name in groups)
