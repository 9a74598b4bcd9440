"""What a model is sent, from the question to the served study: a small ONNX model with free height and width."""

from __future__ import annotations

import json
import pathlib
import shlex

import numpy as np
import pytest
import yaml

from tests.fakes.adding import free_image
from tests.fakes.commands import tune
from tuner.launching.engine_process import LuthierProcess

SHORT = ("--concurrency", "2", "--seconds", "0.4", "--warmup", "0.1")
BUDGET = ("--trials", "1", "--initial", "1", "--sampler", "random")
GATHER = """
import numpy as np

class Words:
    inputs = [{"name": "ids", "datatype": "INT64", "shape": [-1, 3]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]

    def predict_batch(self, inputs):
        return {"y": np.zeros(5, np.float32)[inputs["ids"]]}
"""
WHOLE = """
class Whole:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [2, 3]},
        {"name": "rate", "datatype": "INT64", "shape": []},
    ]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2, 3]}]

    def predict_batch(self, inputs):
        assert inputs["rate"].shape == ()
        return {"y": inputs["x"] * inputs["rate"]}
"""


@pytest.fixture
def model(tmp_path: pathlib.Path) -> str:
    return str(free_image(tmp_path / "image.onnx"))


@pytest.mark.parametrize("command", [("--concurrency", "2"), ("space", "--concurrency", "2")])
def test_a_size_that_nobody_told_is_asked_for(
    model: str, command: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """In one line, with the command to paste; nothing is written."""
    done = tune(tmp_path, *command, "--model", model)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "input 'x', axis 2 (height); input 'x', axis 3 (width)" in line
    assert line.endswith(
        f"tune {shlex.join(command)} --model {model} --shape height=224 --shape width=224"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["image.onnx"]


def test_the_command_that_is_offered_works(model: str, tmp_path: pathlib.Path) -> None:
    """`tune inputs` shows what is free; with the option that it gives, a request is answered."""
    asked = tune(tmp_path, "inputs", model)
    assert asked.code == 2
    assert "[items, 3, height, width]" in asked.out
    (line,) = asked.err.splitlines()
    offered = shlex.split(line.rpartition("for example: tune ")[2])
    shown = tune(tmp_path, *offered, "--json")
    assert shown.code == 0, shown.err
    answer = json.loads(shown.out)
    assert answer["inputs"][0]["sent"] == "3x224x224 of standard normal"
    assert answer["missing"] is None


def test_a_study_of_sizes_that_were_told_is_served_by_its_best(
    model: str, tmp_path: pathlib.Path
) -> None:
    """The distribution stands in the notes and in the report, and in best.yaml for the server."""
    sizes = ("--shape", "height=8..16", "--shape", "width=8..16")
    done = tune(tmp_path, "--model", model, *SHORT, *BUDGET, *sizes, "--study", "s", "--json")
    assert done.code == 0, done.err
    assert "input x FP32 [items, 3, height, width]: 3x8..16x8..16 of standard normal" in done.err
    told = "256 random inputs of the model's signature, with height=8..16 width=8..16"
    assert any(told in note for note in json.loads(done.out)["notes"])
    folder = tmp_path / "runs" / "s"
    assert "3x8..16x8..16 of standard normal" in (folder / "report.html").read_text("utf-8")
    best = yaml.safe_load((folder / "best.yaml").read_text("utf-8"))
    assert best["model"]["shapes"] == "height=8..16 width=8..16"
    server = ("-m", "serving", "--settings", str(folder / "best.yaml"))
    with LuthierProcess.start(model, program=server) as running:
        assert running.describe().signature is not None


def test_an_index_out_of_range_names_the_option(tmp_path: pathlib.Path) -> None:
    """With the range that the model takes, and with it the request is answered."""
    (tmp_path / "words.py").write_text(GATHER, encoding="utf-8")
    refused = tune(tmp_path, "inputs", "words.py:Words")
    assert refused.code == 1
    option = "--values ids=0..4"
    assert option in refused.err
    assert tune(tmp_path, "inputs", "words.py:Words", *option.split()).code == 0


def test_a_model_that_is_served_whole_is_sent_whole_inputs(tmp_path: pathlib.Path) -> None:
    """Scalars as scalars; nothing of batches is searched, and a client batch is refused with the reason."""
    (tmp_path / "whole.py").write_text(WHOLE, encoding="utf-8")
    target = ("--model", "whole.py:Whole", "--values", "rate=2")
    refused = tune(tmp_path, *target, "--concurrency", "2", "--client-batch", "4")
    assert refused.code == 2
    assert "--client-batch 4: whole takes one request at a time, whole (input" in refused.err
    done = tune(tmp_path, "space", *target, "--concurrency", "2", "--out", "w.yaml")
    assert done.code == 0, done.err
    text = (tmp_path / "w.yaml").read_text("utf-8")
    assert "served whole, one request at a time (input" in " ".join(text.replace("#", " ").split())
    assert "batching." not in yaml.safe_load(text)["knobs"]


def test_a_payload_of_its_own_shapes_needs_no_sizes(model: str, tmp_path: pathlib.Path) -> None:
    """A file says all, and the sizes are not asked for; values beside it are refused."""
    np.savez(tmp_path / "p.npz", x=np.zeros((4, 3, 5, 7), "f4"))
    done = tune(tmp_path, "inputs", model, "--payload", "p.npz")
    assert done.code == 0, done.err
    assert "source: --payload p.npz" in done.out
    both = tune(tmp_path, "inputs", model, "--payload", "p.npz", "--values", "x=1")
    assert both.code == 2
    assert "--values x=1: not allowed with --payload" in both.err
