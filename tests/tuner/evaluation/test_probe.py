"""The probe of a model, with a real engine and a real client."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tuner.evaluation import probe
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.launching.engine_process import LuthierLauncher
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


SPINNING = """
import time


class Spinning:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]

    def __init__(self, path):
        pass

    def predict_batch(self, inputs):
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass
        return {"y": inputs["x"]}
"""


class WithoutControlGroups:
    """An engine that cannot tell its replicas' CPU time."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def replica_facts(self):
        facts = self._engine.replica_facts()
        replicas = tuple(dataclasses.replace(one, cpu_s=None) for one in facts.replicas)
        return dataclasses.replace(facts, replicas=replicas)


class PoorLauncher(LuthierLauncher):
    def start(self, configuration=None):
        return WithoutControlGroups(super().start(configuration))


def test_cpu_time_is_known_without_control_groups(tmp_path: pathlib.Path) -> None:
    """It is that of the replicas' processes; it was 0.01 cores for every model."""
    (tmp_path / "spinning.py").write_text(SPINNING)
    name = f"{tmp_path}/spinning.py:Spinning"
    target = TargetSettings(model=name, concurrency=2)
    settings = MeasurementSettings(seconds=0.4, warmup_s=0.1)
    launcher = PoorLauncher(name)
    with Evaluator(model=name, concurrency=2, settings=settings, launcher=launcher) as bench:
        served = bench.start()
        bench.send(problem.payloads_of(target, problem.find_spec(name), served, seed=0))
        found = probe.observe_batches(bench, 1, 1, seconds=0.5)

    assert found.after.cpu_s is None
    assert found.replica_cpu_s == pytest.approx(0.02 * len(found.load.records), rel=0.5)
