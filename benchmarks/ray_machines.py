"""Machines of a Ray cluster for benchmarks: network namespaces of this one, joined by a bridge.

In: how many, and how many cores each offers. Out: a head without work, and machines that can be
killed, cut off and joined again. Needs root, iproute2 and the extra `ray`. Knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

START_S = 90.0
_PORT = 6399
_NETWORK = "10.77.0"
HERE = f"{_NETWORK}.1"
"""Address of this machine, on which the server runs."""
_STORE_BYTES = 100 << 20


class Machine:
    """A network namespace."""

    def __init__(self, name: str, number: int, cluster: Cluster) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{10 + number}"
        self._link = f"{name}b"
        self._cluster = cluster

    def make(self, bridge: str) -> None:
        """Make the namespace, without a Ray node."""
        _do("ip", "netns", "add", self.name)
        peer = ("peer", "name", "eth0", "netns", self.name)
        _do("ip", "link", "add", self._link, "type", "veth", *peer)
        _do("ip", "link", "set", self._link, "master", bridge, "up")
        inside = ("ip", "-n", self.name)
        _do(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _do(*inside, "link", "set", "eth0", "up")
        _do(*inside, "link", "set", "lo", "up")

    def start(self) -> None:
        """Start its Ray node; returns once it has joined."""
        self._cluster.join(self.address, self._cluster.cores, namespace=self.name)

    def start_head(self) -> None:
        """Start Ray's head on it, or start it again."""
        # Ray takes the processes of other namespaces for a head that runs on this machine already.
        pathlib.Path(self._cluster.folder, "ray_current_cluster").unlink(missing_ok=True)
        self._cluster.ray("start", "--head", "--port", str(_PORT), "--node-ip-address",
            self.address, "--num-cpus", "0", "--include-dashboard", "false",
            "--object-store-memory", str(_STORE_BYTES), "--temp-dir", self._cluster.folder,
            namespace=self.name)  # fmt: skip

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
        # Its namespace goes later, and the link with it: a name that the next cluster needs.
        with contextlib.suppress(subprocess.CalledProcessError):
            _do("ip", "link", "del", self._link)
        with contextlib.suppress(subprocess.CalledProcessError):
            until_s = time.monotonic() + 10
            while self.pids() and time.monotonic() < until_s:
                self.kill()
                time.sleep(0.1)
            _do("ip", "netns", "del", self.name)


class Cluster:
    """A head, machines that join it, and this machine as one without cores."""

    def __init__(self, cores: int, environment: Mapping[str, str]) -> None:
        """Prepare; `environment` holds more variables of Ray's processes."""
        self.cores = cores
        self.head = Machine(f"lut{os.getpid()}h", 0, self)
        self.machines: list[Machine] = []
        self.address = f"{self.head.address}:{_PORT}"
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": self.address,
        }
        self._more = dict(environment)
        self._here: set[int] = set()
        self.folder = tempfile.mkdtemp(prefix="ray")
        """Temporary files of Ray on all machines."""

    def open(self, bridge: str, count: int) -> None:
        """Start all."""
        self.head.make(bridge)
        self.head.start_head()
        before = _ray_pids()
        self.join(HERE, 0)
        self._here = _ray_pids() - before
        for number in range(count):
            machine = Machine(f"lut{os.getpid()}n{number}", 1 + number, self)
            self.machines.append(machine)
            machine.make(bridge)
            machine.start()

    def join(self, address: str, cores: int, *, namespace: str | None = None) -> None:
        """Start a Ray node that joins the head."""
        self.ray("start", "--address", self.address, "--node-ip-address", address, "--num-cpus",
            str(cores), "--object-store-memory", str(_STORE_BYTES), namespace=namespace)  # fmt: skip

    def ray(self, *words: str, namespace: str | None = None) -> None:
        """Run a command of Ray's, with the cluster's token."""
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        if namespace is not None:  # `ip netns exec` would mount a /sys without control groups
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
        for machine in (*self.machines, self.head):
            machine.remove()
        for pid in self._here:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def cluster(
    count: int,
    *,
    cores: int,
    environment: Mapping[str, str] | None = None,
    beside: contextlib.AbstractContextManager[object] | None = None,
) -> Iterator[Cluster]:
    """Machines that have joined a head; afterwards nothing of them is left, also on SIGTERM.

    `beside` is entered when `HERE` exists, and before Ray starts.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bridge = f"lut{os.getpid()}"
    made = Cluster(cores, environment or {})
    try:
        _do("ip", "link", "add", bridge, "type", "bridge")
        _do("ip", "addr", "add", f"{HERE}/24", "dev", bridge)
        _do("ip", "link", "set", bridge, "up")
        with beside or contextlib.nullcontext():
            made.open(bridge, count)
            yield made
    finally:
        made.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            _do("ip", "link", "del", bridge)


def _ray_pids() -> set[int]:
    """Processes of Ray on this machine that are not in another network namespace."""
    found = set()
    ours = pathlib.Path("/proc/self/ns/net").stat().st_ino
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                is_here = (entry / "ns/net").stat().st_ino == ours
                if is_here and (b"/ray/" in words or b"ray::" in words):
                    found.add(int(entry.name))
    return found


def _do(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
