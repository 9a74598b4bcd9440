"""The probe of a model, with a real engine and a real client."""

from __future__ import annotations

import pathlib

import pytest

from tuner.evaluation import probe
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem

pytestmark = pytest.mark.processes

MODEL = """
import os
import pathlib

import numpy as np

SERVER = pathlib.Path(__file__).with_name("server")


class Prepared:
    '''What it needs is made by the first replica of a server, in 64 MiB that it gives back.'''

    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]

    def __init__(self, path):
        server = str(os.getppid())
        if not SERVER.exists() or SERVER.read_text() != server:
            np.ones(64 << 20, np.uint8)
            SERVER.write_text(server)

    def predict_batch(self, inputs):
        return {"y": inputs["x"]}
"""


def test_memory_is_that_of_the_first_replica_of_a_server(tmp_path: pathlib.Path) -> None:
    """A limit that only replicas fit in that join later fails each fresh start of what is recommended with it."""
    (tmp_path / "prepared.py").write_text(MODEL)
    name = f"{tmp_path}/prepared.py:Prepared"
    target = TargetSettings(model=name, concurrency=1)
    card = problem.find_spec(name)
    settings = MeasurementSettings(seconds=0.4, warmup_s=0.1)
    with Evaluator(model=name, concurrency=1, settings=settings) as bench:
        served = bench.start()
        bench.send(problem.payloads_of(target, card, served, seed=0))
        found = probe.probe_model(
            bench, problem.environment_of(target, machine.read(), card), served
        )

    assert found.peak_memory_mb[1] > 64
