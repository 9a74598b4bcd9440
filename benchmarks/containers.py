"""What containers cost against processes: a start, a live change of limits, latency; and a study on them.

    python benchmarks/containers.py [--trials 20] [--quick] [--write] [--json]

Needs a Docker engine with the images of `make images` (docs/containers.md), and `wrk`.

1. Starts: the replica count is raised by one on a server of `resnet`, so that one container is made, imports its
   runtime, loads and warms up; then it is lowered again. The time is that of the whole settings request.
2. Live changes: the CPU limit of that server's one replica.
3. Latency: two servers of `resnet` with the same settings, one spawner each, 20 connections in alternating rounds on
   fresh starts; the mean ratio of the rounds with its 95 % interval.
4. A study: `tune --model resnet --concurrency 20 --spawner docker --trials 20`, as a user runs it; then what the engine
   has left of ours. The same after `kill -9` of the tuner in a second study, and `tune doctor --clean`.

Ends with 1 when a target is missed. Takes up to nine minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import candidates
import comparison
import docker
import result
import server_process
import wrk

from serving.spawners.docker.containers import OWNER_LABEL
from tuner.measurement.comparison import ratio_interval

MOST_START_S = 2.0
MOST_CHANGE_S = 0.150
MOST_OVERHEAD = 1.05
MOST_STUDY_S = 300.0
SETTINGS = {"replica.count": 2, "batching.max_size": 8}
KILLED_AFTER_S = 20.0
STUDY = ["tune", "--model", "resnet", "--concurrency", "20", "--spawner", "docker"]


def patched(admin_port: int, **values: object) -> float:
    """Seconds of one change of settings."""
    began_s = time.monotonic()
    body = json.dumps({"settings": values, "keep_learned": True}).encode()
    status, _, answer = server_process.administer(admin_port, "PATCH", "/admin/settings", body)
    if status != 200:
        raise server_process.ServerFailed(answer.decode())
    return time.monotonic() - began_s


def starts_and_changes(count: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of starts of a container, of live changes, and of starts of a process."""
    found = {}
    changes = []
    for spawner in ("docker", "process"):
        settings = {"replica.spawner": spawner, "replica.cpu": 1.0, "replica.memory_mb": 512}
        with server_process.served("resnet", settings) as where:
            taken = []
            for _ in range(count):
                taken.append(patched(where.admin_port, **{"replica.count": 2}))
                patched(where.admin_port, **{"replica.count": 1})
            found[spawner] = taken
            if spawner == "docker":
                for turn in range(4 * count):
                    cpu = 0.5 if turn % 2 else 0.75
                    changes.append(patched(where.admin_port, **{"replica.cpu": cpu}))
    return found["docker"], changes, found["process"]


def latencies(options: argparse.Namespace) -> list[comparison.Round]:
    """Rounds of both homes."""
    workload = candidates.resnet()
    contenders = []
    for spawner in ("process", "docker"):
        candidate = candidates.luthier(workload, {**SETTINGS, "replica.spawner": spawner})
        contenders.append(dataclasses.replace(candidate, name=spawner))
    return comparison.alternate(contenders, options)


def left_of_ours() -> list[str]:
    """Containers with our label, those that ended included."""
    client = docker.from_env()
    with contextlib.closing(client):
        found = client.containers.list(
            all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
        )
        return [container.name for container in found]


def study(folder: pathlib.Path, trials: int) -> tuple[float, int]:
    """Seconds of a study, and what it left."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "tuner.cli.main", *STUDY[1:], "--trials", str(trials)]
    done = subprocess.run(
        [*command, "--runs-dir", str(folder), "--study", "whole"],
        cwd=server_process.ROOT,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise server_process.ServerFailed(f"the study ended with {done.returncode}")
    return time.monotonic() - began_s, len(left_of_ours())


def killed_study(folder: pathlib.Path, after_s: float) -> int:
    """What is left after a kill of the tuner and `tune doctor --clean`."""
    command = [sys.executable, "-m", "tuner.cli.main", *STUDY[1:], "--runs-dir", str(folder)]
    tuner = subprocess.Popen(
        command, cwd=server_process.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        tuner.wait(after_s)
        raise server_process.ServerFailed("the study ended before it was killed")
    tuner.send_signal(signal.SIGKILL)
    tuner.wait()
    clean = [sys.executable, "-m", "tuner.cli.main", "doctor", "--clean"]
    subprocess.run(clean, cwd=server_process.ROOT, stdout=subprocess.DEVNULL, check=True)
    return len(left_of_ours())


def ms(seconds: float) -> str:
    """As a cell."""
    return f"{1e3 * seconds:,.0f}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured; seconds, and containers of ours that were left."""

    containers_s: list[float]
    changes_s: list[float]
    processes_s: list[float]
    rounds: list[comparison.Round]
    trials: int
    study_s: float
    left: int
    left_by_kill: int


def concluded(found: Found) -> result.Result:
    """Tables and verdict."""
    ratios = [round_["docker"].p50_ms / round_["process"].p50_ms for round_ in found.rounds]
    overhead, interval = ratio_interval(
        *([round_[spawner].p50_ms for round_ in found.rounds] for spawner in ("docker", "process"))
    )
    assert interval.high is not None
    start_s, change_s = statistics.median(found.containers_s), statistics.median(found.changes_s)
    rows = [
        ("start of a container, ms", ms(start_s), ms(max(found.containers_s)), ms(MOST_START_S)),
        (
            "start of a process, ms",
            ms(statistics.median(found.processes_s)),
            ms(max(found.processes_s)),
            "-",
        ),
        (
            "live change of a container's limits, ms",
            ms(change_s),
            ms(max(found.changes_s)),
            ms(MOST_CHANGE_S),
        ),
        (
            "p50 of a container over that of a process",
            f"{overhead:.3f}",
            f"{max(ratios):.3f}",
            f"{MOST_OVERHEAD}",
        ),
        (f"study of {found.trials} trials, s", f"{found.study_s:.0f}", "-", f"{MOST_STUDY_S:.0f}"),
        ("containers of ours after the study", str(found.left), "-", "0"),
        ("after kill -9 and `tune doctor --clean`", str(found.left_by_kill), "-", "0"),
    ]
    is_met = (
        max(found.containers_s) < MOST_START_S
        and max(found.changes_s) < MOST_CHANGE_S
        and interval.high <= MOST_OVERHEAD
        and found.study_s <= MOST_STUDY_S
        and not found.left
        and not found.left_by_kill
    )
    return result.Result(
        name="containers",
        question="What do replicas in containers cost against processes, and is anything left of them?",
        target=f"a start under {MOST_START_S:g} s, a live change under {MOST_CHANGE_S * 1e3:g} ms, p50 at most "
        f"{MOST_OVERHEAD - 1:.0%} above a process by the 95 % interval of the rounds, a study of 20 trials within "
        f"{MOST_STUDY_S / 60:g} minutes, "
        f"nothing left",
        verdict=f"{ms(start_s)} ms to start (at most {ms(max(found.containers_s))}), {ms(change_s)} ms to change "
        f"(at most {ms(max(found.changes_s))}), p50 {overhead:.3f} x [{interval.low:.3f}, {interval.high:.3f}], "
        f"{found.study_s:.0f} s for the study, "
        f"{found.left + found.left_by_kill} containers left",
        is_met=is_met,
        tables=(
            result.Table(title="Figures", head=("", "median", "worst", "target"), rows=rows),
            result.Table(
                title="Rounds at 20 connections",
                head=(
                    "round",
                    "process p50 ms",
                    "docker p50 ms",
                    "process /s",
                    "docker /s",
                    "ratio of p50",
                ),
                rows=[
                    (
                        str(number + 1),
                        f"{round_['process'].p50_ms:.2f}",
                        f"{round_['docker'].p50_ms:.2f}",
                        f"{round_['process'].requests_per_s:,.0f}",
                        f"{round_['docker'].requests_per_s:,.0f}",
                        f"{ratio:.3f}",
                    )
                    for number, (round_, ratio) in enumerate(zip(found.rounds, ratios, strict=True))
                ],
            ),
        ),
        figures={
            "start_s": found.containers_s,
            "process_start_s": found.processes_s,
            "change_s": found.changes_s,
            "p50_ratios": ratios,
            "study_s": found.study_s,
            "left": found.left,
            "left_after_kill": found.left_by_kill,
        },
        packages=("onnxruntime", "docker"),
    )


def main() -> int:
    """Measure, and conclude."""
    parser = argparse.ArgumentParser(description="containers against processes")
    parser.add_argument(
        "--starts-measured", type=int, default=8, help="of each spawner (default 8)"
    )
    parser.add_argument(
        "--starts", type=int, default=2, help="fresh starts of the rounds (default 2)"
    )
    parser.add_argument("--rounds", type=int, default=4, help="rounds per start (default 4)")
    parser.add_argument("--seconds", type=int, default=4, help="of a round (default 4)")
    parser.add_argument("--trials", type=int, default=20, help="of the study (default 20)")
    options = result.parsed(parser, starts_measured=2, starts=1, rounds=2, seconds=1, trials=3)
    if problem := wrk.is_missing():
        parser.error(problem)
    containers_s, changes_s, processes_s = starts_and_changes(options.starts_measured)
    rounds = latencies(options)
    with tempfile.TemporaryDirectory() as name:
        study_s, left = study(pathlib.Path(name), options.trials)
        left_by_kill = killed_study(pathlib.Path(name), KILLED_AFTER_S)
    found = Found(
        containers_s=containers_s,
        changes_s=changes_s,
        processes_s=processes_s,
        rounds=rounds,
        trials=options.trials,
        study_s=study_s,
        left=left,
        left_by_kill=left_by_kill,
    )
    return result.conclude(concluded(found), options)


if __name__ == "__main__":
    sys.exit(main())
