"""Check of this machine: what is missing, which limits work, and the smallest gain it can show.

Only `clean` changes anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import shutil
import socket
import sys
import time
from typing import Literal

from serving.accelerator import clocks, mps
from serving.api import admin_token
from serving.spawners.docker import containers, spawner
from serving.spawners.docker.containers import DockerClient, DockerError
from serving.system.cgroups import manager
from tuner.errors import TunerError
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.measurement import meters, power, variance_components
from tuner.measurement.variance_components import VarianceComponents
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem
from tuner.study.preparation import start_target
from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement

State = Literal["ok", "note", "wrong"]
MIN_PYTHON = (3, 11)
PORTS = {8000: "queries", 8001: "queries over gRPC", 8002: "admin"}
OPTIONAL = {
    "sklearn": "scikit-learn models: pip install '.[sklearn]' in a clone",
    "skops": "scikit-learn models: pip install '.[sklearn]' in a clone",
    "GPy": "the gpy sampler: pip install '.[gpy]' in a clone",
    "skopt": "the skopt sampler: pip install '.[skopt]' in a clone",
}
VERIFICATION_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str
    state: State
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseResult:
    """Variation between measurements of one configuration, as shares (0.05: 5 %)."""

    model: str
    launches: int
    components: VarianceComponents
    trial_sd: float
    useful_s: float
    smallest_gain: float | None
    start_s: float


def findings() -> tuple[Finding, ...]:
    """Run all cheap checks."""
    return (
        _python(),
        _machine(),
        _limits(),
        _docker(),
        *_ports(),
        *_gpu_findings(),
        *_packages(),
        _wrk(),
    )


def clean() -> tuple[str, ...]:
    """Remove what dead servers left: groups with processes, directories, containers, GPU locks.

    Raises:
        TunerError: a GPU cannot be restored; the rest is done.
    """
    removed = [str(path) for path in (*admin_token.remove_left(), *manager.cleanup_stale())]
    with contextlib.suppress(DockerError):  # no engine, no containers
        removed += [f"container {name}" for name in containers.cleanup_stale()]
    done, failed = clocks.restore_stale()
    if failed:
        raise TunerError(f"not restored: {'; '.join(failed)}")
    return (*removed, *done)


def noise_of(target: TargetSettings, *, launches: int) -> NoiseResult:
    """Evaluate one configuration several times, and split the variance.

    Raises:
        TunerError: it failed.
    """
    card = problem.find_spec(target.model, is_trusted=target.trust)
    settings = MeasurementSettings()
    measured: list[Measurement] = []
    starts_s: list[float] = []
    with Evaluator(
        model=target.model,
        concurrency=target.in_flight,
        settings=settings,
        launcher=problem.launcher_of(target),
    ) as evaluator:
        served = start_target(evaluator)
        evaluator.send(problem.payloads_of(target, card, served, seed=0))
        for _ in range(launches):
            before_s = time.monotonic()
            launch = evaluator.evaluate_on_new_server(Configuration({}))
            if launch.measurement is None:
                raise TunerError(f"the noise cannot be measured: {launch.outcome.reason}")
            measured.append(launch.measurement)
            starts_s.append(time.monotonic() - before_s - settings.measured_s)
    components = variance_components.components_of([measured])
    if components is None:
        raise TunerError("the noise cannot be measured: latencies are too long for blocks")
    trial_sd = components.trial_sd(len(measured[0].blocks))
    start_s = sorted(starts_s)[len(starts_s) // 2]
    pairs = power.pairs_within(VERIFICATION_S, start_s=start_s, measured_s=settings.measured_s)
    return NoiseResult(
        model=served.model,
        launches=launches,
        components=components,
        trial_sd=trial_sd,
        useful_s=variance_components.useful_seconds(
            components, start_s=start_s, block_s=settings.block_s
        ),
        smallest_gain=power.smallest_gain(trial_sd, pairs),
        start_s=start_s,
    )


def sentences(found: NoiseResult) -> tuple[str, ...]:
    """Noise in words."""
    evaluation_sd = found.components.evaluation_sd
    lines = [
        f"{found.model}, {found.launches} evaluations: blocks of one evaluation differ by "
        f"{found.components.block_sd:.1%} (standard deviation), evaluations by "
        + ("an unknown amount" if evaluation_sd is None else f"{evaluation_sd:.1%}"),
        f"one evaluation estimates its mean to {found.trial_sd:.1%}",
    ]
    if math.isfinite(found.useful_s):
        lines.append(f"measuring an evaluation for longer than {found.useful_s:.2g} s gains little")
    if found.smallest_gain is not None:
        lines.append(
            f"in {VERIFICATION_S:g} s of alternating evaluations this machine is likely "
            f"to show gains from {found.smallest_gain:.1%}; smaller ones need more time"
        )
    return tuple(lines)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= MIN_PYTHON
    text = version if is_new else f"{version}, expected 3.11 or newer"
    return Finding(name="python", state="ok" if is_new else "wrong", text=text)


def _limits() -> Finding:
    found = manager.probe()
    state: State = "ok" if found.kind else "note"
    return Finding(name="limits", state=state, text=found.text)


def _docker() -> Finding:
    image = spawner.image_of("onnx")
    try:
        engine = DockerClient.connect()
        if not engine.has_image(image):
            text = f"engine at {engine.address}, but no image {image}: build it with `make images`"
            return Finding(name="docker", state="note", text=text)
    except DockerError as error:
        return Finding(name="docker", state="note", text=f"no containers: {error}")
    state: State = "ok" if engine.limits_text == "enforced" else "note"
    text = f"engine at {engine.address}, image {image}, limits {engine.limits_text}"
    return Finding(name="docker", state=state, text=text)


def _ports() -> list[Finding]:
    found = []
    for port, use in PORTS.items():
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as error:
                text = (
                    f"in use ({error.strerror}); `python -m serving` needs another port for "
                    f"{use}, `tune` picks free ones"
                )
                found.append(Finding(name=f"port {port}", state="note", text=text))
            else:
                found.append(Finding(name=f"port {port}", state="ok", text=f"free ({use})"))
    return found


def _gpu_findings() -> tuple[Finding, ...]:
    return (_gpu(), _sharing(), _energy())


def _gpu() -> Finding:
    found = clocks.supported_clocks_mhz()
    if isinstance(found, str):
        return Finding(name="gpu clocks", state="note", text=f"not available as a knob: {found}")
    text = (
        f"{len(found)} clocks offered, {found[0]} to {found[-1]} MHz; a study tests whether "
        "they can be locked"
    )
    return Finding(name="gpu clocks", state="ok", text=text)


def _sharing() -> Finding:
    lacking = mps.lacking(os.environ)
    text = "CUDA MPS is running" if lacking is None else f"not a knob here: {lacking}"
    return Finding(name="gpu sharing", state="note" if lacking else "ok", text=text)


def _energy() -> Finding:
    with meters.open_counters() as found:
        if found.counters:
            text = " and ".join(counter.text for counter in found.counters)
            return Finding(name="energy", state="ok", text=text)
        return Finding(
            name="energy", state="note", text=f"not measurable: {'; '.join(found.lacking)}"
        )


def _packages() -> list[Finding]:
    return [
        Finding(name=package, state="note", text=f"not installed; needed for {use}")
        for package, use in OPTIONAL.items()
        if importlib.util.find_spec(package) is None
    ]


def _wrk() -> Finding:
    path = shutil.which("wrk")
    return Finding(name="wrk", state="ok", text=path or "not installed; only benchmarks use it")


def _machine() -> Finding:
    facts = machine.read()
    return Finding(name="machine", state="ok", text=f"{facts.cores} cores, {facts.memory_mb} MiB")
