"""A whole server under one limit of CPU and memory, as a pod is."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from serving.errors import InvalidSettings
from serving.system.cgroups import manager
from tuner.errors import LaunchFailed
from tuner.launching.engine_process import LuthierProcess
from tuner.launching.pod import PodLimiter
from tuner.values.configuration import Configuration

SUPPORT = manager.probe()
pytestmark = [
    pytest.mark.limits,
    pytest.mark.skipif(SUPPORT.kind is None, reason=f"limits are {SUPPORT.text}"),
]
SMALL = Configuration({"replica.count": 1, "replica.cpu": 0.5, "replica.memory_mb": 64})
LARGE = Configuration({"replica.count": 2, "replica.cpu": 0.25, "replica.memory_mb": 128})
EATER = """
import numpy as np

class Eater:
    inputs = [{"name": "mb", "datatype": "INT64", "shape": [-1, 1]}]
    outputs = [{"name": "eaten", "datatype": "INT64", "shape": [-1, 1]}]

    def predict_batch(self, inputs):
        eaten = b"x" * (int(inputs["mb"].max()) << 20)
        return {"eaten": inputs["mb"] + 0 * len(eaten)}
"""


@pytest.fixture
def limiter() -> Iterator[PodLimiter]:
    made = PodLimiter("python", cores=2)
    yield made
    made.close()


def limits_of(pid: int) -> tuple[float, int]:
    """Cores and MiB of the group in which a process is."""
    found: dict[str, float] = {}
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            folder = pathlib.Path(f"/sys/fs/cgroup/{name}{path}")
            for file, unit in (
                ("cpu.cfs_quota_us", 100_000),
                ("cpu.max", 100_000),
                ("memory.limit_in_bytes", 1 << 20),
                ("memory.max", 1 << 20),
            ):
                if (folder / file).exists():
                    text = (folder / file).read_text(encoding="ascii").split()[0]
                    found[file.partition(".")[0]] = int(text) / unit
    return found["cpu"], int(found["memory"])


def test_the_whole_server_has_the_limits_of_its_configuration(limiter: PodLimiter) -> None:
    """Gateway and replicas are in one group, which a change of the configuration changes."""
    with LuthierProcess.start("echo", SMALL, pods=limiter) as engine:
        for configuration, cores, memory_mb in ((SMALL, 1.5, 384), (LARGE, 1.5, 576)):
            engine.apply(configuration)
            pids = [engine.facts.pid, *engine.replica_facts().pids]
            assert {limits_of(pid) for pid in pids} == {(cores, memory_mb)}
        assert engine.describe().limits == "of the whole server"
        usage = engine.replica_facts().replicas[0]
        assert usage.pid is not None
    assert not any(limits_left(limiter))


def limits_left(limiter: PodLimiter) -> list[pathlib.Path]:
    """Groups of single servers that still exist."""
    roots = limiter._groups.directories
    return [path for root in roots if root.exists() for path in root.iterdir() if path.is_dir()]


def test_a_refused_configuration_leaves_the_limits_before(limiter: PodLimiter) -> None:
    """The old replicas serve on, so their limits hold again."""
    with LuthierProcess.start("echo", SMALL, pods=limiter) as engine:
        with pytest.raises(InvalidSettings):
            engine.apply(Configuration({**LARGE, "batching.max_size": 100_000}))
        with pytest.raises(LaunchFailed, match="another"):
            engine.apply(Configuration({**LARGE, "model.variant": "another"}))
        assert limits_of(engine.facts.pid) == (1.5, 384)


@pytest.fixture(scope="module", name="eater")
def _eater(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that takes as much memory as it is asked to."""
    file = tmp_path_factory.mktemp("eater") / "eater.py"
    file.write_text(EATER, encoding="utf-8")
    return f"{file}:Eater"


def test_a_replica_that_takes_more_than_the_server_may_is_out_of_memory(
    limiter: PodLimiter, eater: str
) -> None:
    """The kernel ends it; the death says that it was the limit of the whole, and the server goes on."""
    with LuthierProcess.start(eater, SMALL, is_trusted=True, pods=limiter) as engine:
        assert ask(engine, mb=150) == 200  # more than a replica's own share, but not than the sum
        assert engine.replica_facts().deaths == ()
        assert ask(engine, mb=600) >= 500
        (death,) = {one.text: one for one in engine.replica_facts().deaths}.values()
        assert death.reason == "oom"
        assert "memory of the whole server; raise replica.memory_mb" in death.text
        assert engine.is_running()


def test_a_later_configuration_is_not_blamed_for_memory(limiter: PodLimiter, eater: str) -> None:
    """What the kernel killed before the last change says nothing of a server that ends after it."""
    with LuthierProcess.start(eater, SMALL, is_trusted=True, pods=limiter) as engine:
        assert ask(engine, mb=600) >= 500
        assert "for memory" in engine.last_words()
        engine.apply(LARGE)
        assert "for memory" not in engine.last_words()
        os.kill(engine.facts.pid, signal.SIGKILL)
        assert engine.last_words().startswith("ended by SIGKILL")
        assert "for memory" not in engine.last_words()
        with pytest.raises(LaunchFailed):
            engine.replica_facts()


def test_a_server_that_needs_more_at_its_start_is_out_of_memory(
    limiter: PodLimiter, tmp_path: pathlib.Path
) -> None:
    """The cause is oom, so that the search learns a limit, and not a crash."""
    file = tmp_path / "large.py"
    text = EATER.replace("import numpy as np", "import numpy as np\nEATEN = bytes(700 << 20)")
    file.write_text(text.replace("bytes(700 << 20)", "b'x' * (700 << 20)"), encoding="utf-8")
    with pytest.raises(LaunchFailed) as caught:
        LuthierProcess.start(f"{file}:Eater", SMALL, is_trusted=True, pods=limiter)
    assert caught.value.cause == "oom"
    assert "limit 384 MiB" in caught.value.text
    assert not any(limits_left(limiter))


def test_a_server_that_uses_more_than_its_new_limit_is_told_so(limiter: PodLimiter) -> None:
    """The kernel takes nothing away, and the configuration is infeasible."""
    pod = limiter.limit(Configuration({"replica.count": 8, "replica.memory_mb": 128}))
    code = "import sys; held = b'x' * (500 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", f"input(); {code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pod.join(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        with pytest.raises(LaunchFailed) as caught, pod.changing(SMALL):
            pass
        assert caught.value.cause == "oom"
        assert "than the 384 MiB of its limit as a whole" in caught.value.text
        pod.close()


def ask(engine: LuthierProcess, *, mb: int) -> int:
    """Status of the response to a request that takes so many MiB."""
    connection = http.client.HTTPConnection(engine.host, engine.port, timeout=30)
    tensor = {"name": "mb", "datatype": "INT64", "shape": [1, 1], "data": [mb]}
    name = engine.describe().model
    try:
        body = json.dumps({"inputs": [tensor]})
        connection.request("POST", f"/v2/models/{name}/infer", body)
        return connection.getresponse().status
    finally:
        connection.close()
