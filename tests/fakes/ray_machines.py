"""Machines of a Ray cluster of the test's own, on this machine.

`python -m tests.fakes.ray_machines` runs a head without cores, and machines as standard input says; the end
of that ends all of it, also when the test is killed. Ray reads its token once in a process, so it is in one
of its own.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile

import pytest

CORES = 2
"""That each machine seems to have."""
END_S = 30.0


class RayMachines:
    """A cluster of two machines, of which one can be killed."""

    def __init__(self, process, environment):
        self._process = process
        self.environment = {**environment, "RAY_ADDRESS": self._heard()}
        """Of commands that use the cluster."""

    def kill(self):
        """Kill all processes of the machine that was added last, Ray's first."""
        self._order("kill")

    def freeze(self):
        """Stop Ray on the machine that was added last, which then is as silent as behind a cut link."""
        self._order("freeze")

    def add(self, **resources):
        """Add a machine, with `CORES` cores or with these arguments of `Cluster.add_node`."""
        self._order("add", resources or {"num_cpus": CORES})

    def _order(self, word, resources=None):
        self._process.stdin.write(f"{json.dumps([word, resources])}\n")
        self._process.stdin.flush()
        assert self._heard() == word

    def _heard(self):
        """Return what the cluster's process says next; Ray itself prints, too."""
        for line in self._process.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        return pytest.fail("the cluster has ended")


@contextlib.contextmanager
def ray_machines():
    """Two machines and a head."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is installed by make test-ray")
    # Ray's sockets lie below its folder, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(pathlib.Path.cwd()),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # A silent machine is lost after some 20 s instead of 65 s (docs/machines.md).
            "RAY_health_check_timeout_ms": "4000",
            "RAY_health_check_failure_threshold": "3",
        }
        with subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield RayMachines(process, environment)
            finally:
                process.stdin.close()
                try:
                    process.wait(END_S)
                finally:
                    process.kill()


def main():
    """Run the cluster."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - not where tests are collected

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    nodes = [cluster.add_node(num_cpus=CORES) for _ in range(2)]
    _say(cluster.address)
    for line in sys.stdin:
        word, resources = json.loads(line)
        if word == "freeze":
            for started in nodes[-1].all_processes["raylet"]:
                started.process.send_signal(signal.SIGSTOP)
        elif word == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            nodes.append(cluster.add_node(**resources))
        _say(word)
    cluster.shutdown()


def _say(word):
    sys.stdout.write(f"> {word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
