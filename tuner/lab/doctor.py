"""Checks of this machine: what is missing, which limits work, and which gains are measurable."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    state: State
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseResult:
    """Spread between evaluations of one configuration, as shares (0.05 means 5 %)."""

    model: str
    evaluations: int
    components: VarianceComponents
    trial_sd: float
    useful_s: float
    smallest_gain: float | None
    start_s: float


def findings() -> tuple[Finding, ...]:
    """Run all quick checks."""
    facts, cgroups = machine.read(), manager.probe()
    return (
        _python(),
        Finding("machine", "ok", f"{facts.cores} cores, {facts.memory_mb} MiB"),
        Finding("limits", "ok" if cgroups.kind else "note", cgroups.text),
        _docker(),
        *map(_port, PORTS),
        _gpu(),
        _sharing(),
        _energy(),
        *_packages(),
        Finding("wrk", "ok", shutil.which("wrk") or "not installed; only benchmarks use it"),
    )


def clean() -> tuple[str, ...]:
    """Remove what dead servers left behind: process groups, directories, containers, GPU locks.

    Finally raises TunerError if a GPU cannot be restored.
    """
    removed = [str(path) for path in (*admin_token.remove_left(), *manager.cleanup_stale())]
    with contextlib.suppress(DockerError):  # no engine, no containers
        removed += [f"container {name}" for name in containers.cleanup_stale()]
    done, failed = clocks.restore_stale()
    if failed:
        raise TunerError(f"not restored: {'; '.join(failed)}")
    return (*removed, *done)


def noise_of(target: TargetSettings, *, evaluations: int) -> NoiseResult:
    """Evaluate one configuration several times, and decompose the variance."""
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
        for _ in range(evaluations):
            before_s = time.monotonic()
            evaluation = evaluator.evaluate_on_new_server(Configuration({}))
            if evaluation.measurement is None:
                raise TunerError(f"the noise cannot be measured: {evaluation.outcome.reason}")
            measured.append(evaluation.measurement)
            starts_s.append(time.monotonic() - before_s - settings.measured_s)
    components = variance_components.components_of([measured])
    if components is None:
        raise TunerError("the noise cannot be measured: latencies are too long for blocks")
    trial_sd = components.trial_sd(len(measured[0].blocks))
    start_s = sorted(starts_s)[len(starts_s) // 2]
    pairs = power.pairs_within(VERIFICATION_S, start_s=start_s, measured_s=settings.measured_s)
    return NoiseResult(
        model=served.model,
        evaluations=evaluations,
        components=components,
        trial_sd=trial_sd,
        useful_s=variance_components.useful_seconds(
            components, start_s=start_s, block_s=settings.block_s
        ),
        smallest_gain=power.smallest_gain(trial_sd, pairs),
        start_s=start_s,
    )


def sentences(found: NoiseResult) -> tuple[str, ...]:
    """Describe the measured noise in sentences."""
    evaluation_sd = found.components.evaluation_sd
    lines = [
        f"{found.model}, {found.evaluations} evaluations: blocks of one evaluation differ by "
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
    return Finding("python", "ok" if is_new else "wrong", text)


def _docker() -> Finding:
    image = spawner.image_of("onnx")
    try:
        engine = DockerClient.connect()
        if not engine.has_image(image):
            text = f"engine at {engine.address}, but no image {image}: build it with `make images`"
            return Finding("docker", "note", text)
    except DockerError as error:
        return Finding("docker", "note", f"no containers: {error}")
    text = f"engine at {engine.address}, image {image}, limits {engine.limits_text}"
    return Finding("docker", "ok" if engine.limits_text == "enforced" else "note", text)


def _port(port: int) -> Finding:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            text = (
                f"in use ({error.strerror}); `python -m serving` needs another port for "
                f"{PORTS[port]}, `tune` picks free ones"
            )
            return Finding(f"port {port}", "note", text)
    return Finding(f"port {port}", "ok", f"free ({PORTS[port]})")


def _gpu() -> Finding:
    found = clocks.supported_clocks_mhz()
    if isinstance(found, str):
        return Finding("gpu clocks", "note", f"not available as a knob: {found}")
    text = (
        f"{len(found)} clocks offered, {found[0]} to {found[-1]} MHz; a study tests whether "
        "they can be locked"
    )
    return Finding("gpu clocks", "ok", text)


def _sharing() -> Finding:
    lacking = mps.lacking(os.environ)
    text = "CUDA MPS is running" if lacking is None else f"not a knob here: {lacking}"
    return Finding("gpu sharing", "note" if lacking else "ok", text)


def _energy() -> Finding:
    with meters.open_counters() as found:
        if found.counters:
            text = " and ".join(counter.text for counter in found.counters)
            return Finding("energy", "ok", text)
        return Finding("energy", "note", f"not measurable: {'; '.join(found.lacking)}")


def _packages() -> list[Finding]:
    return [
        Finding(package, "note", f"not installed; needed for {use}")
        for package, use in OPTIONAL.items()
        if importlib.util.find_spec(package) is None
    ]
