"""After `kill -9` of a gateway nothing of it is left: no process, no control group, no directory."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from serving.system.cgroups import manager
from tests.fakes import control_groups

WAIT_S = 20.0
LIMITED = manager.probe()

GATEWAY = """
import asyncio, json, sys
from serving.spawners.process.spawner import ProcessSpawner
from serving.model_spec import ModelSpec

async def main():
    home = ProcessSpawner()
    await home.open("echo")
    spec = ModelSpec(name="m", version="1", kind="echo", path=None)
    replicas = [
        await home.start(n, cpu=1.0, memory_mb=128, ready_timeout_s=20, spec=spec) for n in range(2)
    ]
    pids = [home._nest.forker.pid, *[replica.pid for replica in replicas]]
    print(json.dumps(pids), flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


def _traces(pid):
    """What a process of this number owns in the system: directories and groups."""
    directories = pathlib.Path(tempfile.gettempdir()).glob(f"luthier-{pid}-*")
    return [*directories, *control_groups.named(f"luthier-{pid}-*")]


def _is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.parametrize("template_too", [False, True], ids=["gateway", "gateway and template"])
def test_nothing_outlives_a_killed_gateway(template_too):
    """After kill -9 of the gateway no process, group or directory is left.

    The template sees to it; if that was killed as well, the next home does.
    """
    with subprocess.Popen([sys.executable, "-c", GATEWAY], stdout=subprocess.PIPE) as gateway:
        pids = json.loads(gateway.stdout.readline())
        assert len(_traces(gateway.pid)) >= 1
        if template_too:
            os.kill(gateway.pid, signal.SIGSTOP)
            os.kill(pids[0], signal.SIGKILL)
        gateway.kill()
        gateway.wait()
    deadline_s = time.monotonic() + WAIT_S
    while any(map(_is_alive, pids)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    if template_too:
        manager.cleanup_stale()  # unless a home that another test opens has done it by now
    while _traces(gateway.pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.skipif(LIMITED.kind is None, reason=f"limits are {LIMITED.text}")
def test_what_a_model_has_started_does_not_outlive_a_killed_gateway():
    """The template kills what is left in the groups, whatever session it is in."""
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with left, subprocess.Popen([sys.executable, "-c", GATEWAY], stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout.readline()
            for root in control_groups.named(f"luthier-{gateway.pid}-*"):
                (root / "replica-0" / "cgroup.procs").write_text(str(left.pid))
            gateway.kill()
            assert left.wait(WAIT_S) == -signal.SIGKILL
        finally:
            left.kill()
    deadline_s = time.monotonic() + WAIT_S
    while _traces(gateway.pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
