"""What servers with replicas on other machines leave behind, however they end: nothing.

    python benchmarks/node_leftovers.py [--starts 50] [--quick] [--write] [--json]

Two machines (network namespaces with a Ray node each). Servers with four replicas start one after the other, and
each is asked and then ended in another way: by SIGTERM, or by SIGKILL of the server, of its steward, of a node
agent, of a replica's parent, or while it starts. After each, all that was there before and nothing else must be
there again, within some seconds: processes on all machines, control groups, Ray's actors and placement groups;
and temporary files after one more server, as the folder of a killed one goes with the next start.

Ends with 1 when something is left. Needs root, iproute2 and the extra `ray`. Takes ten minutes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from unittest import mock

import ray_machines
import result
import server_process

from serving.system import process_identity

REPLICAS = 4
CORES = 4
START_S = 60.0
GONE_S = 30.0
SETTINGS = ("replica.spawner=ray", f"replica.count={REPLICAS}")
LOOK = """
import json, ray
from ray._private.state import actors
from ray.util.placement_group import placement_group_table
ray.init(address="auto", _node_ip_address="{here}", log_to_driver=False, logging_level="ERROR")
alive = [one for one in actors().values() if one["State"] != "DEAD"]
groups = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
print(json.dumps([len(alive), len(groups)]))
"""

LAST = "SIGTERM of one more"
MARK = secrets.token_hex(8)
"""Variable that all processes of this benchmark have, and no other server."""
Found = dict[str, list[str]]


def there() -> Found:
    """Processes of our own, and control groups and files whose owners have ended."""
    processes = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_ours = entry.name.isdecimal() and b"serving." in (entry / "cmdline").read_bytes()
            if is_ours and MARK.encode() in (entry / "environ").read_bytes():
                processes.append(entry.name)
    walk = (pathlib.Path(path) for path, _, _ in os.walk("/sys/fs/cgroup"))
    groups = [str(path) for path in walk if _is_stale(path.name)]
    temporary = pathlib.Path(tempfile.gettempdir())
    files = [str(path) for path in temporary.glob("luthier-*") if _is_stale(path.name)]
    words = [sys.executable, "-c", LOOK.format(here=ray_machines.HERE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    actors, placements = json.loads(done.stdout.splitlines()[-1])
    return {
        "processes": processes,
        "control groups": groups,
        "files": files,
        "actors": ["actor"] * actors,
        "placement groups": ["group"] * placements,
    }


def _is_stale(name: str) -> bool:
    owner = process_identity.of(name)
    return owner is not None and owner.is_gone()


def left(before: Found, *, but: str = "") -> Found:
    """Leftovers beside what was there before, without one kind, once there are none or time is over."""
    until_s = time.monotonic() + GONE_S
    while True:
        now = there()
        more = {
            kind: list(
                (collections.Counter(now[kind]) - collections.Counter(before[kind])).elements()
            )
            for kind in now
            if kind != but
        }
        if not any(more.values()) or time.monotonic() > until_s:
            return {kind: each for kind, each in more.items() if each}
        time.sleep(0.5)


def pids(module: str) -> list[int]:
    """Processes of a module."""
    done = subprocess.run(
        ["pgrep", "-f", f"-m {module}"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in done.stdout.split()]


def _server(process: subprocess.Popen[str]) -> None:
    process.kill()


def _kill(module: str) -> Callable[[subprocess.Popen[str]], None]:
    def kill(process: subprocess.Popen[str]) -> None:
        found = pids(module)
        if found:
            os.kill(found[0], signal.SIGKILL)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)

    return kill


def _ask_to_end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


ENDS: dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "SIGTERM": _ask_to_end,
    "SIGKILL of the server": _server,
    "SIGKILL of the steward, then SIGTERM": _kill("serving.spawners.node.ray_steward"),
    "SIGKILL of a node agent, then SIGTERM": _kill("serving.spawners.node.agent"),
    "SIGKILL of a replica's parent, then SIGTERM": _kill("serving.replica.forkserver"),
    "SIGKILL of the server while it starts": _server,
}


def ended(how: str) -> None:
    """Start a server and end it."""
    command = [sys.executable, "-m", "serving", "--model", "resnet", "--port", "0"]
    command += ["--admin-port", "0", *(word for one in SETTINGS for word in ("--set", one))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            if how.endswith("starts"):
                time.sleep(2.5)
            else:
                assert process.stdout is not None
                facts = json.loads(process.stdout.readline())
                server_process.request(facts["port"], "GET", "/v2/health/ready")
            ENDS[how](process)
            process.wait(START_S)
        finally:
            process.kill()


def measured(starts: int) -> tuple[dict[str, int], dict[str, Found]]:
    """Start and end; return how often each way, and what it left."""
    counts: dict[str, int] = dict.fromkeys(ENDS, 0)
    remained: dict[str, Found] = {}
    with (
        mock.patch.dict("os.environ", {"LUTHIER_MARK": MARK}),
        ray_machines.cluster(2, cores=CORES) as cluster,
        mock.patch.dict("os.environ", cluster.environment),
    ):
        before = there()
        for number in range(starts):
            how = list(ENDS)[number % len(ENDS)]
            result.say(f"{number + 1}: {how}")
            ended(how)
            counts[how] += 1
            more = left(before, but="files")
            if more:
                remained.setdefault(how, {}).update(more)
                result.say(f"left: {more}")
                before = there()
        ended("SIGTERM")
        counts[LAST] = 1
        if more := left(before):
            remained[LAST] = more
    return counts, remained


def concluded(counts: dict[str, int], remained: dict[str, Found]) -> result.Result:
    """Table and verdict."""
    rows = [
        (
            how,
            str(count),
            ", ".join(f"{len(v)} {k}" for k, v in remained.get(how, {}).items()) or "-",
        )
        for how, count in counts.items()
    ]
    starts = sum(counts.values())
    return result.Result(
        name="node_leftovers",
        question="What do servers with replicas on other machines leave behind, however they end?",
        target="no process, control group, file, actor or placement group",
        verdict=f"{starts} servers with {REPLICAS * starts} replicas: "
        + (", ".join(sorted({k for each in remained.values() for k in each})) or "nothing"),
        is_met=not remained,
        tables=(result.Table(title="Ends", head=("how", "times", "left"), rows=rows),),
        figures={"counts": counts, "left": remained},
        packages=("ray",),
    )


def main() -> int:
    """Start, end and look."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=50, help="of servers (default 50)")
    options = result.parsed(parser, starts=len(ENDS))
    return result.conclude(concluded(*measured(options.starts)), options)


if __name__ == "__main__":
    sys.exit(main())
