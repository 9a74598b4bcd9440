"""Machines of a Ray cluster for benchmarks: network namespaces of this one, joined by a bridge.

In: how many, and how many cores each offers. Out: machines that can be killed, cut off and joined again.
Needs root, iproute2 and the extra `ray`. Knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

START_S = 90.0
_PORT = 6399
_NETWORK = "10.77.0"
_STORE_BYTES = 100 << 20


class Machine:
    """A network namespace in which a Ray node runs."""

    def __init__(self, name: str, number: int, cluster: Cluster) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{10 + number}"
        self._link = f"{name}b"
        self._cluster = cluster

    def make(self, bridge: str) -> None:
        """Make the namespace, without a Ray node."""
        _do("ip", "netns", "add", self.name)
        _do(
            "ip",
            "link",
            "add",
            self._link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.name,
        )
        _do("ip", "link", "set", self._link, "master", bridge, "up")
        inside = ("ip", "-n", self.name)
        _do(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _do(*inside, "link", "set", "eth0", "up")
        _do(*inside, "link", "set", "lo", "up")

    def start(self) -> None:
        """Start its Ray node; returns once it has joined."""
        # `ip netns exec` would mount another /sys, which has no control groups
        self._cluster.ray("start", "--address", self._cluster.address, "--node-ip-address",
            self.address, "--num-cpus", str(self._cluster.cores), "--object-store-memory",
            str(_STORE_BYTES), namespace=self.name)  # fmt: skip

    def kill(self) -> None:
        """End everything that runs on it, at once."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """Take its link away: nothing comes or goes, and nobody is told."""
        _do("ip", "link", "set", self._link, "down")

    def join(self) -> None:
        """Give its link back."""
        _do("ip", "link", "set", self._link, "up")

    def pids(self) -> list[int]:
        """Processes that run on it."""
        return [int(pid) for pid in _do("ip", "netns", "pids", self.name).split()]

    def remove(self) -> None:
        """End everything, and remove the namespace."""
        with contextlib.suppress(subprocess.CalledProcessError):
            until_s = time.monotonic() + 10
            while self.pids() and time.monotonic() < until_s:
                self.kill()
                time.sleep(0.1)
            _do("ip", "netns", "del", self.name)


class Cluster:
    """A head without work on this machine, and machines that join it."""

    def __init__(self, cores: int, head: Mapping[str, str]) -> None:
        """Prepare; `head` holds more variables of the head's environment."""
        self.cores = cores
        self.address = f"{_NETWORK}.1:{_PORT}"
        self.machines: list[Machine] = []
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": self.address,
        }
        self._more = dict(head)
        self._folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        self.head_pids: list[int] = []

    def start_head(self) -> None:
        """Start the head, or start it again."""
        before = _ray_pids()
        self.ray("start", "--head", "--port", str(_PORT), "--node-ip-address", f"{_NETWORK}.1",
            "--num-cpus", "0", "--include-dashboard", "false", "--object-store-memory",
            str(_STORE_BYTES), "--temp-dir", self._folder.name)  # fmt: skip
        self.head_pids = sorted(_ray_pids() - before)

    def kill_head(self) -> None:
        """Kill the head's control store, as a crash of its machine would."""
        for pid in self.head_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ray(self, *words: str, namespace: str | None = None) -> None:
        """Run a command of Ray's, with the cluster's token."""
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        if namespace is not None:
            command = ["nsenter", f"--net=/run/netns/{namespace}", *command]
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment, **self._more},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")

    def close(self) -> None:
        """End all."""
        self.kill_head()
        self._folder.cleanup()


@contextlib.contextmanager
def cluster(count: int, *, cores: int, head: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Machines that have joined a head; afterwards nothing of them is left."""
    bridge = f"lut{os.getpid()}"
    made = Cluster(cores, head or {})
    try:
        _do("ip", "link", "add", bridge, "type", "bridge")
        _do("ip", "addr", "add", f"{_NETWORK}.1/24", "dev", bridge)
        _do("ip", "link", "set", bridge, "up")
        made.start_head()
        for number in range(count):
            machine = Machine(f"lut{os.getpid()}n{number}", number, made)
            made.machines.append(machine)
            machine.make(bridge)
            machine.start()
        yield made
    finally:
        for machine in made.machines:
            machine.remove()
        made.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            _do("ip", "link", "del", bridge)


def _ray_pids() -> set[int]:
    """Processes of Ray on this machine that are not in another network namespace."""
    found = set()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                words = file.read()
            is_here = os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116
            if is_here and (b"/ray/" in words or b"ray::" in words):
                found.add(pid)
    return found


def _do(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
