"""Nothing of ours stays on the engine, however the gateway ends; and nothing of others is touched."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import docker
import docker.errors
import pytest

from serving.spawners.docker import containers as docker_client
from serving.spawners.docker.containers import OWNER_LABEL
from serving.spawners.docker.spawner import image_of
from serving.system import process_identity
from tests.fakes.docker_engine import needs_docker

pytestmark = needs_docker
ROOT = pathlib.Path(__file__).parents[2]
WAIT_S = 30.0
GATEWAY = """
import asyncio, json
from serving.spawners.docker.spawner import DockerSpawner
from serving.model_spec import ModelSpec

async def main():
    home = DockerSpawner()
    await home.open("echo")
    spec = ModelSpec(name="m", version="1", kind="echo", path=None)
    for number in range(2):
        await home.start(number, cpu=1.0, memory_mb=128, ready_timeout_s=30, spec=spec)
    print(json.dumps({"home": home._nest.name, "keeper": home._nest.keeper.pid}), flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


@pytest.fixture(name="client", scope="module")
def _client():
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(name="gateway")
def _gateway():
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        yield process, json.loads(process.stdout.readline())
        process.kill()


def _of(client, name):
    return client.containers.list(
        all=True, filters={"label": f"{OWNER_LABEL}={name}"}, ignore_removed=True
    )


def _keepers(home):
    """The processes that keep the containers of a home."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            if "serving.spawners.docker.reaper" in words and home in words:
                found.append(int(folder.name))
    return found


def _until(done):
    until_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until_s, "it takes too long"
        time.sleep(0.05)


def test_after_a_kill_of_the_gateway_its_keeper_removes_all(client, gateway):
    """Containers and folder are gone, though nobody was left who owned them."""
    process, facts = gateway
    assert len(_of(client, facts["home"])) == 2
    folder = pathlib.Path(tempfile.gettempdir(), facts["home"])
    assert folder.is_dir()
    process.kill()
    process.wait()
    _until(lambda: not _of(client, facts["home"]))
    _until(lambda: not folder.exists())


def test_after_a_kill_of_the_keeper_another_one_removes_all(client, gateway):
    """The containers of a gateway that lives stay; after a kill of it nothing does."""
    process, facts = gateway
    os.kill(facts["keeper"], signal.SIGKILL)
    _until(lambda: set(_keepers(facts["home"])) - {facts["keeper"]})
    assert [container.status for container in _of(client, facts["home"])] == ["running"] * 2
    process.kill()
    process.wait()
    _until(lambda: not _of(client, facts["home"]))
    _until(lambda: not pathlib.Path(tempfile.gettempdir(), facts["home"]).exists())


def test_after_a_kill_of_both_the_next_clean_up_removes_all(client, gateway):
    """`tune doctor --clean` finds what neither gateway nor keeper could remove, and leaves others' alone."""
    process, facts = gateway
    process.send_signal(signal.SIGSTOP)  # else it starts another reaper
    os.kill(facts["keeper"], signal.SIGKILL)
    process.kill()
    process.wait()
    image = image_of("echo")
    living = process_identity.this_process().new_name()
    others = [
        client.containers.create(image, labels=labels)
        for labels in ({}, {OWNER_LABEL: living}, {OWNER_LABEL: "somebody else"})
    ]
    try:
        _until(lambda: all(c.status == "exited" for c in _of(client, facts["home"])))
        assert len(_of(client, facts["home"])) == 2
        said = subprocess.run(
            [sys.executable, "-m", "tuner.cli.main", "doctor", "--clean", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        removed = json.loads(said.stdout)["removed"]
        assert {f"container {facts['home']}-{number}" for number in range(2)} <= set(removed)
        assert not _of(client, facts["home"])
        assert not pathlib.Path(tempfile.gettempdir(), facts["home"]).exists()
        for container in others:
            container.reload()
    finally:
        for container in others:
            with contextlib.suppress(docker.errors.NotFound):
                container.remove(force=True)


def test_a_living_gateway_s_containers_are_not_stale(client, gateway):
    """A clean-up beside a server that runs takes nothing from it."""
    _, facts = gateway
    docker_client.cleanup_stale()
    assert [container.status for container in _of(client, facts["home"])] == ["running"] * 2
