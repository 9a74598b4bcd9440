"""A primed process has nothing left to do once when it loads its first model."""

import json
import pathlib
import subprocess
import sys

import serving.models.onnx  # noqa: F401 - what is imported is primed
from serving import zoo
from serving.replica import preload
from serving.zoo import bundled

FIRST_LOAD = """
import json, pathlib, sys
from serving import models
from serving.replica import samples as sampling, warmup
from serving.replica.execution import Execution
from serving.replica.preload import run_small_model

is_primed, path, samples = json.loads(sys.argv[1])
if is_primed:
    run_small_model()
    assert "onnxruntime" not in sys.modules, "nothing is primed that is not imported"
import serving.models.onnx
if is_primed:
    run_small_model()
before = set(sys.modules)
model = models.load("onnx", pathlib.Path(path), threads=1)
found = sampling.samples_of(model, pathlib.Path(samples))
warmup.warm_up(Execution(model), found, max_items=1, within_s=1e-6)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by_first_load(*, is_primed):
    """Modules that the first load of a new process imports."""
    card = zoo.find("gan")
    order = json.dumps([is_primed, str(card.path), str(card.sample)])
    command = [sys.executable, "-c", FIRST_LOAD, order]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_the_first_load_imports_nothing():
    """What it would import without is imported before HELLO."""
    assert imported_by_first_load(is_primed=True) == []
    assert imported_by_first_load(is_primed=False) != []


def test_what_primes_is_bundled():
    """Files of the zoo, which a wheel holds."""
    for folder in preload.SMALL.values():
        assert folder.parent == bundled.FOLDER
        assert {"model.onnx", "samples.npz"} <= {file.name for file in folder.iterdir()}


def test_a_process_that_cannot_be_primed_goes_on(monkeypatch, caplog):
    """It says so, and is a replica as well."""
    monkeypatch.setattr(preload, "SMALL", {"onnx": pathlib.Path("/nowhere")})
    preload.run_small_model()
    assert caplog.messages == ["not primed"]
