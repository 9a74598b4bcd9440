"""`tune` on a machine with a GPU: its clock as a knob, energy as the objective, and no lock left behind."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import time

import pytest
import yaml

from serving.accelerator import restore_journal
from tuner.cli import main
from tuner.measurement import meters

MODEL = """
import time

class Still:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1]}]

    def predict_batch(self, inputs):
        time.sleep(0.002)
        return {"y": inputs["x"]}
"""
SPACE = """
name: still
knobs:
  accelerator.clock_mhz: {type: int, choices: device, points: 2, unit: MHz}
  batching.max_size: {type: int, choices: [4], default: 4, unit: items}
"""
SHORT = (
    "--seconds",
    "0.4",
    "--warmup",
    "0.1",
    "--trials",
    "2",
    "--initial",
    "2",
    "--sampler",
    "random",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model that takes as long at any clock; no energy counter of a CPU."""
    (tmp_path / "still.py").write_text(MODEL)
    (tmp_path / "space.yaml").write_text(SPACE)
    monkeypatch.setattr(meters, "POWERCAP", tmp_path / "powercap")
    monkeypatch.chdir(tmp_path)
    return tmp_path


STUDY = ("--model", "still.py:Still", "--concurrency", "4", "--space", "space.yaml", *SHORT)


def tune(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(arguments)
    return code, out.getvalue(), err.getvalue()


def test_the_clock_that_costs_least_energy_is_found(gpu, folder) -> None:
    """Applied in every launch, exported as a setting of the server, and taken away at the end."""
    code, out, err = tune(*STUDY, "--pairs", "2", "--objective", "energy", "--study", "e", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["objective"] == "energy"
    assert said["best"]["accelerator.clock_mhz"] == 300
    assert {"lock 300", "lock 1980"} <= set(gpu.changes)
    assert (gpu.locked_mhz, gpu.notes) == (0, [])
    study = folder / "runs" / "e"
    best = yaml.safe_load((study / "best.yaml").read_text())
    assert best["accelerator"]["clock_mhz"] in {300, 1980}
    page = (study / "report.html").read_text()
    assert "energy (J/request)" in page
    assert "energy counts Fake GPU (its energy counter), each as a whole" in page


def test_energy_is_refused_where_none_can_be_counted(gpu, folder) -> None:
    """One line, exit code 2, nothing started or written."""
    gpu.unplug()
    code, _, err = tune(*STUDY, "--objective", "energy")
    assert code == 2
    assert "--objective energy: energy cannot be measured here: no GPU responds" in err.replace(
        "\n", " "
    )
    assert not (folder / "runs").exists()


def test_a_killed_tuner_leaves_no_lock(gpu, folder) -> None:
    """Its server ends with it, in order."""
    command = [sys.executable, "-m", "tuner.cli.main", *STUDY, "--pairs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until_s = time.monotonic() + 60
        while "lock 300" not in gpu.changes and time.monotonic() < until_s:
            time.sleep(0.02)
        process.kill()
    assert "lock 300" in gpu.changes
    until_s = time.monotonic() + 20
    while gpu.notes and time.monotonic() < until_s:
        time.sleep(0.02)
    assert (gpu.locked_mhz, gpu.notes) == (0, [])


def test_doctor_cleans_up_after_a_killed_server(gpu, folder) -> None:
    """It names what it restored, and then finds nothing; what it cannot restore is an error."""
    hold = "from serving.accelerator.clocks import ClockLock; import os; ClockLock().hold(900); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", hold], check=False)
    assert gpu.locked_mhz == 900
    gpu.refuse(nvmlDeviceResetGpuLockedClocks=4)
    code, _, err = tune("doctor", "--clean")
    assert code == 1
    assert "not restored: clock of GPU-5ca1ab1e" in err.replace("\n", " ")
    gpu.refuse()
    code, out, _ = tune("doctor", "--clean", "--json")
    assert (code, gpu.locked_mhz) == (0, 0)
    assert any("had locked to 900 MHz" in line for line in json.loads(out)["removed"])
    assert restore_journal.all_of(restore_journal.folder()) == []
    assert pathlib.Path(folder / "state").exists()
