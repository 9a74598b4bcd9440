"""Probe of a model, from which `tuner.space.derive` derives a space.

One replica, one thread, no limits. Enough clients fill every batch, so that rate = batch size /
service time. Memory and CPU time come from the engine, else /proc.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

from tuner.errors import LaunchFailed, LoadGeneratorFailed, TunerError
from tuner.evaluation.evaluator import Evaluator
from tuner.launching.engine import EngineInfo
from tuner.launching.replica_facts import ReplicaFacts
from tuner.space import derive
from tuner.space.environment import Environment
from tuner.space.probe import ProbeResult
from tuner.values.configuration import Configuration

SIZES = (1, 2, 4, 8, 16, 32)
"""Batch sizes, up to the items in flight."""
SECONDS = 0.6
FILL_US = 200_000
"""Batching timeout longer than clients take to resend, so never reached."""
_PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    service_time_s: float
    peak_memory_mb: float
    idle_memory_mb: float
    cpu_cores: float


def probe_model(evaluator: Evaluator, environment: Environment, served: EngineInfo) -> ProbeResult:
    """Probe a few batch sizes, or single items.

    Raises:
        TunerError: single items fail.
    """
    seen: dict[int, _Seen] = {}
    # A new server's first replica reads the file and tries two items together, so it takes more
    # memory
    # than later ones. A limit that fits only those would fail every new server.
    evaluator.stop_engine()
    most = 1 if served.unbatched_reason else environment.items
    for size in (size for size in SIZES if size == 1 or size <= most):
        try:
            seen[size] = _observe_size(evaluator, size, environment.client_batch)
        except (LaunchFailed, LoadGeneratorFailed) as error:
            if size == 1:
                raise TunerError(
                    f"the model cannot be probed: {error}; it was sent {evaluator.sent}"
                ) from error
            break  # the space ends below
    return ProbeResult(
        model=served.model,
        concurrency=environment.concurrency,
        machine=environment.machine,
        idle_memory_mb=seen[1].idle_memory_mb,
        peak_memory_mb={size: one.peak_memory_mb for size, one in seen.items()},
        cpu_cores_used=max(one.cpu_cores for one in seen.values()),
        service_time_s={size: one.service_time_s for size, one in seen.items()},
        whole=served.unbatched_reason,
        client_batch=environment.client_batch,
        pads=evaluator.varies and served.signature is not None and served.signature.padding == "",
    )


def text(evaluator: Evaluator, environment: Environment, served: EngineInfo) -> str:
    """Return the commented search-space file."""
    return derive.text(probe_model(evaluator, environment, served))


def _observe_size(evaluator: Evaluator, size: int, client_batch: int) -> _Seen:
    configuration = Configuration(
        {
            "replica.count": 1,
            "replica.threads": 1,
            "batching.max_size": size,
            "batching.timeout_us": FILL_US if size > 1 else 0,
        }
    )
    clients = max(2, -(-2 * size // client_batch))
    found = evaluator.observe_phase(configuration, concurrency=clients, seconds=SECONDS)
    answered = found.answered
    if not answered:
        if not found.load.why_failed:
            raise LoadGeneratorFailed(
                f"no request was answered at batch size {size} in {SECONDS:g} s"
            )
        raise LoadGeneratorFailed(
            f"all requests at batch size {size} failed; {found.load.why_failed}"
        )
    return _Seen(
        service_time_s=size * found.load.measured_s / (answered * client_batch),
        peak_memory_mb=_peak_memory_mb(found.after),
        idle_memory_mb=_peak_memory_mb(found.before),
        cpu_cores=max(0.01, (_cpu_s(found.after) - _cpu_s(found.before)) / found.load.wall_s),
    )


def _peak_memory_mb(facts: ReplicaFacts) -> float:
    if facts.peak_memory_mb is not None:
        return facts.peak_memory_mb
    return max(map(_high_water_mb, facts.pids))


def _cpu_s(facts: ReplicaFacts) -> float:
    if facts.cpu_s is not None:
        return facts.cpu_s
    return sum(map(_process_cpu_s, facts.pids))


def _high_water_mb(pid: int) -> float:
    """Return a process's peak resident memory."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LaunchFailed("crash", f"the replica's process {pid} has ended")


def _process_cpu_s(pid: int) -> float:
    """Return user + kernel time: stat fields 14 and 15, clock ticks."""
    after_name = _read(pid, "stat").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchFailed("crash", f"the replica's process {pid} has ended") from error
