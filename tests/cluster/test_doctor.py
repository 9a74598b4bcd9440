"""`tune doctor --workers` on machines of a real Ray cluster."""

import json
import subprocess
import sys

import pytest

from tests.fakes.ray_machines import CORES, ray_machines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_S = 120.0


@pytest.fixture(name="tune", scope="module")
def _tune(tmp_path_factory):
    """Runs a command of `tune` beside two machines, in a folder with a checkout of something else."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "serving.py").write_text("raise RuntimeError('not this one')")
    with ray_machines() as machines:

        def run(*words):
            command = [sys.executable, "-P", "-m", "tuner", *words]
            return subprocess.run(
                command,
                cwd=folder,
                env=machines.environment,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )

        yield run


def test_machines_are_checked_and_compared(tune):
    """Each is told with its findings and its speed; those of one machine are alike."""
    done = tune("doctor", "--workers", "auto", "--model", "linear", "--evaluations", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["difference"] is None
    assert len(found["nodes"]) == 2
    for node in found["nodes"]:
        assert {one["name"] for one in node["findings"]} > {"python", "machine", "limits"}
        assert len(node["means_ms"]) == 2
        assert node["interval"]["low"] <= node["ratio"] <= node["interval"]["high"]
    ratios = [node["ratio"] for node in found["nodes"]]
    assert ratios[0] * ratios[1] == pytest.approx(1.0)


def test_more_machines_than_there_are_is_one_line(tune):
    """With what to do."""
    done = tune("doctor", "--workers", str(CORES + 1))
    assert done.returncode == 2
    assert "the Ray cluster has 2 machines with cores" in done.stderr
    assert done.stderr.strip().count("\n") == 0
