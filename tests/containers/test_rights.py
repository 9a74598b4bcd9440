"""What a container replica may do, as the engine itself tells it, and that its limits bite."""

import asyncio

import docker
import pytest
import pytest_asyncio

from serving import zoo
from serving.errors import ReplicaStartFailed
from serving.settings.replica import AcceleratorSettings
from serving.spawners.docker.containers import DockerClient
from serving.spawners.docker.spawner import DockerSpawner
from tests.fakes.docker_engine import needs_docker

pytestmark = [needs_docker, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(name="client", scope="module")
def _client():
    client = docker.from_env()
    yield client
    client.close()


@pytest_asyncio.fixture(name="replica", scope="module", loop_scope="module")
async def _replica():
    home = DockerSpawner()
    await home.open("onnx")
    card = zoo.find("resnet")
    replica = await home.start(1, cpu=0.5, memory_mb=256, ready_timeout_s=30, spec=card)
    yield replica
    await home.close()
    replica.sock.close()


async def test_it_has_no_rights_that_it_does_not_need(client, replica):
    """Read-only root, no capabilities, none to be gained, no network, not root."""
    facts = await asyncio.to_thread(lambda: client.containers.get(replica.container).attrs)
    host = facts["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["NetworkMode"] == "none"
    assert host["IpcMode"] == "none"
    assert host["Privileged"] is False
    assert host["PidsLimit"] > 0
    assert facts["Config"]["User"] == "65532:65532"
    assert all(not mount["RW"] for mount in facts["Mounts"])
    inside = {mount["Destination"] for mount in facts["Mounts"]}
    files = {f"/files{file}" for file in zoo.find("resnet").files}
    assert inside == {"/run/luthier", *files}


async def test_its_limits_are_the_engine_s(client, replica):
    """CPU as a quota of the period, memory without swap, before and after a live change; the last one stays."""

    def limits():
        host = client.containers.get(replica.container).attrs["HostConfig"]
        return host["CpuQuota"] / host["CpuPeriod"], host["Memory"], host["MemorySwap"]

    assert await asyncio.to_thread(limits) == (0.5, 256 << 20, 256 << 20)
    await replica.set_limits(cpu=0.75, memory_mb=300)
    assert await asyncio.to_thread(limits) == (0.75, 300 << 20, 300 << 20)
    for turn in range(4):
        given_up = asyncio.create_task(replica.set_limits(cpu=0.6, memory_mb=310))
        await asyncio.sleep(0.002 * turn)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await replica.set_limits(cpu=0.9, memory_mb=320)
        assert await asyncio.to_thread(limits) == (0.9, 320 << 20, 320 << 20)


async def test_from_inside_there_is_nothing_to_write_to_and_nobody_to_talk_to(client, replica):
    """The rights as a process meets them."""
    script = """
import os, socket
found = []
for path in ("/written", "/opt/luthier/written", "/run/luthier/written"):
    try:
        open(path, "w")
        found.append(path)
    except OSError:
        pass
open("/tmp/allowed", "w").write("x")
found += [name for _, name in socket.if_nameindex() if name != "lo"]
found += [line for line in open("/proc/self/status") if line.startswith("CapEff") and int(line.split()[1], 16)]
found += [] if os.getuid() else ["root"]
print(found)
"""
    code, said = await asyncio.to_thread(
        lambda: client.containers.get(replica.container).exec_run(["python3", "-c", script])
    )
    assert (code, said.decode().strip()) == (0, "[]")


async def test_it_is_given_the_gpu_that_is_asked_for_or_says_why_not(client):
    """`cpu` hides GPUs from it; `cuda` is asked of the engine, whose refusal is one line."""
    home = DockerSpawner()
    await home.open("onnx")
    wanted = {"cpu": None, "memory_mb": None, "ready_timeout_s": 30, "spec": zoo.find("resnet")}
    try:
        replica = await home.start(1, **wanted, accelerator=AcceleratorSettings(device="cpu"))
        facts = await asyncio.to_thread(lambda: client.containers.get(replica.container).attrs)
        assert "CUDA_VISIBLE_DEVICES=-1" in facts["Config"]["Env"]
        assert not facts["HostConfig"]["DeviceRequests"]
        replica.sock.close()
        if not (await asyncio.to_thread(DockerClient.connect)).offers_gpus:
            with pytest.raises(ReplicaStartFailed, match="gpu") as caught:
                await home.start(2, **wanted, accelerator=AcceleratorSettings(device="cuda"))
            assert "\n" not in str(caught.value)
    finally:
        await home.close()
