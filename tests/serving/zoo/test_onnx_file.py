"""ONNX files written without the package onnx, read by ONNX Runtime."""

import hashlib

import numpy as np
import pytest

from serving.models import onnx
from serving.zoo.onnx_file import Graph


def test_what_is_written_is_what_runs(tmp_path):
    """Inputs, weights of several datatypes, attributes of every sort, several outputs."""
    graph = Graph("toy")
    x = graph.input("x", "float32", ["batch", 6])
    table = graph.weight("table", np.arange(-3, 3, dtype=np.int64))
    x = graph.add("Clip", x, "", graph.weight("most", np.float32(2)))
    x = graph.add("LeakyRelu", x, alpha=0.5)
    y = graph.add("ReduceSum", x, graph.weight("axes", np.array([1], np.int64)), keepdims=0)
    graph.add("Identity", y, output="sum")
    graph.add("ReduceMax", x, axes=[-1], keepdims=0, output="most_of_row")
    graph.add("Identity", table, output="numbers")
    graph.output("sum", "float32", ["batch"])
    graph.output("most_of_row", "float32", ["batch"])
    graph.output("numbers", "int64", [6])
    digest = graph.save(tmp_path / "toy.onnx")
    assert hashlib.sha256((tmp_path / "toy.onnx").read_bytes()).hexdigest() == digest
    assert [file.name for file in tmp_path.iterdir()] == ["toy.onnx"]

    model = onnx.Model(tmp_path / "toy.onnx", threads=1)

    assert [spec.shape for spec in model.signature.inputs] == [(-1, 6)]
    given = np.array([[-4, -2, 0, 1, 2, 9]], np.float32)
    outputs = model.predict_batch({"x": given})
    assert outputs["sum"].tolist() == [-2 - 1 + 0 + 1 + 2 + 2]
    assert outputs["most_of_row"].tolist() == [2]
    assert outputs["numbers"].tolist() == [-3, -2, -1, 0, 1, 2]


def test_a_datatype_that_is_not_written_is_refused():
    with pytest.raises(KeyError, match="complex64"):
        Graph("toy").weight("w", np.zeros(2, np.complex64))
