"""Files that a user names to the tuner: what is none is refused at once, in one line, whatever option names it."""

import os

import pytest

from serving.values import Signature, TensorSpec
from tuner import document
from tuner.cli.commands import load
from tuner.engines import engine_lookup
from tuner.errors import UsageError
from tuner.evaluation import open_loop, request_source
from tuner.evaluation.scenarios import files as scenario_files
from tuner.lab.tables import table_files
from tuner.load_generator import payload_files, plain_payloads
from tuner.load_generator.endpoint import parse_url
from tuner.metrics import prices
from tuner.settings.target import TargetSettings
from tuner.space import files as space_files

SIGNATURE = Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),), outputs=())
SCENARIO = """
seconds: 2
seed: 1
workers: 1
memory_pages: 100
models: {hot: {copies: 1, profile: resnet50-v100}}
"""


def scenario(folder, text):
    """Reads a scenario that names another file."""
    (folder / "scenario.yaml").write_text(SCENARIO + text)
    return scenario_files.read(folder / "scenario.yaml")


def table(folder, path):
    """Reads a table whose head is some file."""
    (folder / table_files.HEAD).symlink_to(path)
    return table_files.read(folder)


READERS = {
    "--space": space_files.read,
    "--engine": lambda path: engine_lookup.engine_of(f"command:{path}"),
    "--scenario": scenario_files.read,
    "trace of a scenario": lambda path: scenario(
        path.parent, f"traffic: {{hot: {{arrivals: trace, file: {path}, deadline_ms: 9}}}}"
    ),
    "jitter of a scenario": lambda path: scenario(
        path.parent,
        f"traffic: {{hot: {{rate: 2, deadline_ms: 9}}}}\nemulated: {{jitter: {path}}}",
    ),
    "--prices": lambda path: prices.read(str(path)),
    "--arrivals": open_loop.read_trace,
    "--shape": lambda path: request_source.declared_sizes(
        TargetSettings(model="echo", shape=(f"x=@{path}",))
    ),
    "--payload as lines": lambda path: payload_files.from_json_lines(path, SIGNATURE, model="m"),
    "--payload as npz": lambda path: payload_files.from_npz(path, SIGNATURE, model="m"),
    "--payload as a body": lambda path: plain_payloads.from_file(
        path, to="/", method="POST", headers={}
    ),
    "--payload of tune load": lambda path: load._raw(
        parse_url("http://localhost:1/x"), str(path), {}
    ),
    "table": lambda path: table(path.parent, path),
}


@pytest.mark.parametrize("is_device", [False, True])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_no_file_is_refused_in_one_line(tmp_path, read, is_device):
    """A FIFO without a writer, and a device without an end."""
    path = tmp_path / "file"
    path.symlink_to("/dev/zero") if is_device else os.mkfifo(path)
    with pytest.raises(UsageError, match=r"not a regular file|no such file") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert tmp_path.name in str(caught.value)


def test_values_of_a_file(tmp_path):
    """Their file is read when the model's inputs are known."""
    path = tmp_path / "file"
    os.mkfifo(path)
    target = TargetSettings(model="m", shape=("x=2",), values=(f"x=@{path}",))
    with pytest.raises(UsageError, match=r"--values.*not a regular file"):
        request_source.make_request_source(target, None, SIGNATURE)


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"x":' * 100_000, '{"x": [[' + "1" * 5000 + ", 2]]}"],
    ids=["lists", "objects", "digits"],
)
def test_lines_of_json_that_python_cannot_read(tmp_path, line):
    """Too deep, or a number of too many digits: no traceback."""
    path = tmp_path / "lines.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match=r"line 1: not JSON"):
        payload_files.from_json_lines(path, SIGNATURE, model="m")


def test_a_line_is_not_read_further_than_it_may_be(tmp_path, monkeypatch):
    """A file may be larger than the memory."""
    monkeypatch.setattr(payload_files, "MAX_BYTES", 1 << 20)
    path = tmp_path / "lines.jsonl"
    path.write_text(" " * (3 << 20) + "\n")
    with pytest.raises(UsageError, match="line 1: longer than 1 MiB"):
        payload_files.from_json_lines(path, SIGNATURE, model="m")


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{b: " * 100_000, "- " * 5000])
def test_deeply_nested_yaml_is_refused_soon(text):
    """Before any of it is built."""
    with pytest.raises(UsageError, match="nested deeper than 32"):
        document.read(text, "deep.yaml")
