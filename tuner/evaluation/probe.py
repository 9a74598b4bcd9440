"""Probe of a model, from which `tuner.space.derive` derives a search space.

It measures one unlimited replica with one thread. There are enough clients to fill every batch, so
the rate is batch size over service time. Memory use comes from the engine or /proc.
"""

from __future__ import annotations

import contextlib
import pathlib

from tuner.errors import LaunchFailed, LoadGeneratorFailed, TunerError
from tuner.evaluation.evaluation import ObservedPhase
from tuner.evaluation.evaluator import Evaluator
from tuner.launching.engine import EngineInfo
from tuner.launching.replica_facts import ReplicaFacts
from tuner.space import derive
from tuner.space.environment import Environment
from tuner.space.probe import ProbeResult
from tuner.values.configuration import Configuration

SIZES = (1, 2, 4, 8, 16, 32)
"""Batch sizes to probe, up to the number of items that can be in flight."""
SECONDS = 0.6
FILL_US = 200_000
"""Batching timeout so much longer than clients take to resend that it never expires."""


def probe_model(evaluator: Evaluator, environment: Environment, served: EngineInfo) -> ProbeResult:
    """Probe a few batch sizes, or raise TunerError if single items fail."""
    seen: dict[int, ObservedPhase] = {}
    memory_mb: dict[int, tuple[float, float]] = {}
    # A new server's first replica reads the file and tries two items together, so it takes more
    # memory than later ones. A limit that suits only these would fail every new server.
    evaluator.stop_engine()
    most = 1 if served.unbatched_reason else environment.items
    for size in (size for size in SIZES if size == 1 or size <= most):
        try:
            found = observe_batches(evaluator, size, environment.client_batch)
            memory_mb[size] = _peak_memory_mb(found.before), _peak_memory_mb(found.after)
        except (LaunchFailed, LoadGeneratorFailed) as error:
            if size == 1:
                raise TunerError(
                    f"the model cannot be probed: {error}; it was sent {evaluator.sent}"
                ) from error
            break  # the space ends below this size
        seen[size] = found
    return ProbeResult(
        model=served.model,
        concurrency=environment.concurrency,
        machine=environment.machine,
        idle_memory_mb=memory_mb[1][0],
        peak_memory_mb={size: peak_mb for size, (_, peak_mb) in memory_mb.items()},
        cpu_cores_used=max(map(_cpu_cores, seen.values())),
        service_time_s={
            size: size * one.load.measured_s / (one.answered * environment.client_batch)
            for size, one in seen.items()
        },
        whole=served.unbatched_reason,
        client_batch=environment.client_batch,
        pads=evaluator.varies and served.signature is not None and served.signature.padding == "",
    )


def text(evaluator: Evaluator, environment: Environment, served: EngineInfo) -> str:
    """Return the commented search-space file of a probed model."""
    return derive.text(probe_model(evaluator, environment, served))


def observe_batches(
    evaluator: Evaluator, size: int, client_batch: int, *, seconds: float = SECONDS
) -> ObservedPhase:
    """Observe one unlimited replica, with enough clients to fill batches of `size` items.

    Raise LoadGeneratorFailed if no request is answered.
    """
    configuration = Configuration(
        {
            "replica.count": 1,
            "replica.threads": 1,
            "batching.max_size": size,
            "batching.timeout_us": FILL_US if size > 1 else 0,
        }
    )
    clients = max(2, -(-2 * size // client_batch))
    found = evaluator.observe_phase(configuration, concurrency=clients, seconds=seconds)
    if not found.answered:
        if not found.load.why_failed:
            raise LoadGeneratorFailed(
                f"no request was answered at batch size {size} in {seconds:g} s"
            )
        raise LoadGeneratorFailed(
            f"all requests at batch size {size} failed; {found.load.why_failed}"
        )
    return found


def _peak_memory_mb(facts: ReplicaFacts) -> float:
    if facts.peak_memory_mb is not None:
        return facts.peak_memory_mb
    return max(map(_high_water_mb, facts.pids))


def _cpu_cores(found: ObservedPhase) -> float:
    return max(0.01, (found.replica_cpu_s or 0.0) / found.load.wall_s)


def _high_water_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise LaunchFailed("crash", f"the replica's process {pid} has ended")
