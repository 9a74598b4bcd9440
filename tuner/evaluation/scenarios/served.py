"""Scenario served in real time by Luthier with real replicas.

    start an empty server -> deploy the copies -> send every request when it is due -> end it

Arrivals are the same as in the emulation. Each request carries its deadline (the Open Inference
Protocol's `timeout`), and its latency counts from the time it was due.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import re
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import LaunchFailed, LoadGeneratorFailed, UsageError
from tuner.evaluation.scenarios import arrivals, requests, results
from tuner.evaluation.scenarios.emulated import settings_of
from tuner.evaluation.scenarios.requests import MAX_CONNECTIONS, ClientWorkload
from tuner.evaluation.scenarios.values import Scenario
from tuner.launching import pool_metrics
from tuner.launching.engine_process import SERVER, LuthierProcess
from tuner.launching.pool_metrics import PoolCounts
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.phase_result import PhaseResult
from tuner.report import formatting
from tuner.values.configuration import Configuration, Value
from tuner.values.measurement import LATE_S

DEPLOY_TIMEOUT_S = 90.0
MEMORY = "clockwork.memory_mb"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Valid group names, which become part of URLs."""
PROFILES = "server.profiles_dir"
MAX_MODELS = 1000
MAX_SECONDS = 3600.0
REJECTED = {429: "queue full (429)", 503: "cannot be in time (503)"}
DROPPED = {0: "no response", 504: "too late (504)"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun(results.ScenarioResult):
    """Result of one run in real time."""

    send_lag_ms: float
    """p99 of the delay in sending timed requests."""
    sent_late: float
    """Share of timed requests sent over a millisecond late."""
    client_cores: float
    """CPU time of the load generators, divided by the duration of the run."""
    server: PoolCounts


def run(scenario: Scenario, *, say: Callable[[str], None] = lambda _: None) -> ScenarioRun:
    """Serve a scenario once.

    Raise UsageError if it cannot be served, or TunerError on failure.
    """
    began_s = time.monotonic()
    with open_server(scenario) as engine:
        models = sum(group.copies for group in scenario.groups)
        say(f"{formatting.plural(models, 'model')} deployed in {time.monotonic() - began_s:.1f} s")
        say(f"{scenario.seconds:g} s of requests")
        return drive(scenario, engine)


def open_server(
    scenario: Scenario,
    *,
    settings: Mapping[str, Value] | None = None,
    program: Sequence[str] = SERVER,
) -> LuthierProcess:
    """Start a server with all models of a scenario, or raise UsageError if it cannot be served."""
    check(scenario)
    configuration = configuration_of(scenario, settings or {})
    return start_server(scenario, configuration, program=program)


def start_server(
    scenario: Scenario,
    configuration: Configuration,
    *,
    spawner: str | None = None,
    profiles: pathlib.Path | None = None,
    program: Sequence[str] = SERVER,
) -> LuthierProcess:
    """Start a server with all models of a checked scenario; the caller must stop it.

    Model profiles are kept in the folder `profiles`, if given. Raise TunerError if the server does
    not start.
    """
    if profiles is not None:
        configuration = Configuration({**configuration, PROFILES: str(profiles)})
    engine = LuthierProcess.start(None, configuration, spawner=spawner, program=program)
    try:
        for group in scenario.groups:
            for name in group.names:
                engine.admin.deploy(requests.model_of(group), name, timeout_s=DEPLOY_TIMEOUT_S)
    except LaunchFailed as error:
        engine.stop()
        if scenario.pages is None or MEMORY not in error.text:
            raise
        text = (
            f"{error.text}; in a scenario, memory_pages sets this budget, in pages of "
            "clockwork.page_mb"
        )
        raise LaunchFailed(error.cause, text) from error
    except BaseException:
        engine.stop()
        raise
    return engine


def drive(scenario: Scenario, engine: LuthierProcess) -> ScenarioRun:
    """Send a scenario's requests to a server that holds its models.

    Raise TunerError if the server or a load generator fails.
    """
    loads = list(requests.of_scenario(scenario, engine.host, engine.port))
    before = pool_metrics.parse(engine.admin.metrics())
    try:
        found = _drive_all(loads)
    except LoadGeneratorFailed as error:
        if engine.is_running():
            raise
        raise LoadGeneratorFailed(
            f"{error}; the server has ended: {engine.last_words()}"
        ) from error
    after = pool_metrics.parse(engine.admin.metrics())
    return _service(scenario, loads, found, after.since(before))


def check(scenario: Scenario) -> None:
    """Raise UsageError if a scenario can only be emulated, not served."""
    why = next(_why_not(scenario), None)
    if why is not None:
        raise UsageError(f"scenario {scenario.name}: {why}")


def _why_not(scenario: Scenario) -> Iterator[str]:
    models = sum(group.copies for group in scenario.groups)
    for group in scenario.groups:
        if group.model is None:
            yield (
                f"group {group.name!r} has no model to serve; "
                "add `model:` with a bundled model or a file (docs/scenarios.md)"
            )
    if models > MAX_MODELS:
        yield (
            f"{models:,} models, expected at most {MAX_MODELS:,} to be served; "
            "emulate the scenario instead"
        )
    if scenario.seconds > MAX_SECONDS:
        yield (
            f"{scenario.seconds:g} s, expected at most {MAX_SECONDS:g} s to be served; "
            "emulate the scenario instead"
        )
    for group in scenario.groups:
        if not NAME.fullmatch(group.name):
            yield (
                f"the name of group {group.name!r} cannot be served; "
                "use letters, digits, '.', '_' and '-'"
            )
    has_clients = any(stream.clients for stream in scenario.streams)
    if not has_clients and not len(arrivals.draw_arrivals(scenario).at_s):
        yield f"no request is due within {scenario.seconds:g} s; use more time or higher rates"
    for stream in scenario.streams:
        if stream.clients and stream.deadline.factor != 1.0:
            yield (
                f"stream {stream.name!r} has clients with growing deadlines, which can only be "
                "emulated; use one deadline_ms"
            )
        if stream.clients * scenario.group(stream.group).copies > MAX_CONNECTIONS:
            yield (
                f"stream {stream.name!r} has more than {MAX_CONNECTIONS} clients, too many to be "
                "served; emulate the scenario, or use fewer"
            )


def configuration_of(
    scenario: Scenario, before: Mapping[str, Value] = types.MappingProxyType({})
) -> Configuration:
    """Return the server's configuration; the scenario's settings override `before`."""
    wanted = settings_of(scenario)
    found: dict[str, Value] = {
        "scheduling.policy": "clockwork",
        "replica.count": scenario.workers,
        **before,
        **scenario.settings,
    }
    if scenario.pages is not None:
        memory_mb = scenario.pages * wanted.clockwork.page_mb
        if memory_mb != int(memory_mb):
            raise UsageError(
                f"scenario {scenario.name}: {scenario.pages} pages of "
                f"{wanted.clockwork.page_mb:g} MiB are {memory_mb:g} MiB, expected whole "
                "MiB to be served; change memory_pages"
            )
        found[MEMORY] = int(memory_mb)
    return Configuration(found)


# Requests and their outcomes


def _drive_all(loads: Sequence[ClientWorkload]) -> list[PhaseResult]:
    stopped = threading.Event()
    with contextlib.ExitStack() as opened:
        # Exits last: after a failure, closed generators unblock the threads.
        threads = opened.enter_context(concurrent.futures.ThreadPoolExecutor(len(loads)))
        generators = [opened.enter_context(LoadGenerator()) for _ in loads]
        opened.callback(stopped.set)
        driven = [
            threads.submit(_drive, generator, load, stopped)
            for generator, load in zip(generators, loads, strict=True)
        ]
        for one in concurrent.futures.as_completed(driven):
            one.result()
        return [one.result() for one in driven]


def _drive(generator: LoadGenerator, load: ClientWorkload, stopped: threading.Event) -> PhaseResult:
    generator.set_payloads(load.mixture)
    if stopped.wait(load.from_s):
        raise LoadGeneratorFailed("another load has ended before this one began")
    return generator.run(load.plan)


def _service(
    scenario: Scenario,
    loads: Sequence[ClientWorkload],
    found: Sequence[PhaseResult],
    server: PoolCounts,
) -> ScenarioRun:
    ends: list[results.RequestOutcome] = []
    lags: list[NDArray[np.float64]] = []
    begin_s = found[0].origin_s - loads[0].from_s
    for load, one in zip(loads, found, strict=True):
        ends += _ends(scenario, load, one, one.origin_s - begin_s)
        if load.plan.offsets_s:
            lags.append(one.records.started_s - one.records.intended_s)
    lags_s = np.concatenate(lags) if any(map(len, lags)) else np.zeros(1)
    counted = results.summarise(scenario, ends)
    return ScenarioRun(
        **{field.name: getattr(counted, field.name) for field in dataclasses.fields(counted)},
        send_lag_ms=1e3 * float(np.quantile(lags_s, 0.99, method="higher")),
        sent_late=float(np.mean(lags_s > LATE_S)),
        client_cores=sum(one.client_cpu_s for one in found) / counted.seconds,
        server=server,
    )


def _ends(
    scenario: Scenario, load: ClientWorkload, found: PhaseResult, begin_s: float
) -> Iterator[results.RequestOutcome]:
    records = found.records
    places = np.zeros(len(records), dtype=int)
    if load.plan.offsets_s:
        places = np.searchsorted(np.array(load.plan.offsets_s), records.intended_s)
    for place, due_s, done_s, status in zip(
        places.tolist(),
        records.intended_s.tolist(),
        records.finished_s.tolist(),
        records.status.tolist(),
        strict=True,
    ):
        stream = load.streams[place]
        at_s = begin_s + due_s
        refused = None
        if not 200 <= status < 300:
            refused = REJECTED.get(status) or DROPPED.get(status) or f"failed ({status})"
        yield results.RequestOutcome(
            stream=stream,
            at_s=at_s,
            deadline_s=scenario.streams[stream].deadline.at(at_s),
            done_s=begin_s + done_s,
            refused=refused,
            at_once=status in REJECTED,
        )
