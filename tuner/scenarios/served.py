"""A scenario in real time: the serving core on this machine, real replicas, and what became of every request.

    start an empty server -> deploy the copies -> send every request when it is due -> end the server

In: a scenario whose groups name models. Out: `Service`. The arrivals are those of the emulation, to the request; each
carries its deadline (the Open Inference Protocol's `timeout`), and its time counts from when it was due, as a
client's does. Clients that wait for their answers are a load generator of their own for each stream.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from serving import zoo
from serving.errors import ServingError
from serving.values import Signature
from tuner.errors import WrongUse
from tuner.launching import readiness
from tuner.launching.engine_process import SERVER, EngineProcess
from tuner.scenarios import arrivals, results
from tuner.scenarios.emulated import settings_of
from tuner.scenarios.values import Group, Scenario, Stream
from tuner.traffic import oip_body, payload_files, payloads
from tuner.traffic.generator import Generator, LoadResult
from tuner.traffic.mixture import Head, Mixture
from tuner.traffic.payloads import Payloads
from tuner.traffic.plan import LoadPlan, Warmup
from tuner.values import Configuration, Value

DEPLOY_TIMEOUT_S = 90.0
GRACE_S = 5.0
"""A request that has no answer so long after its deadline is lost."""
MOST_MODELS = 1000
MOST_SECONDS = 3600.0
MOST_CONNECTIONS = 500
"""Requests of a stream's kind in flight: what is due beyond that waits at the client, and the wait counts."""
ITEMS = 16
"""Different inputs of each model."""
TOO_MANY, UNAVAILABLE, TOO_LATE = 429, 503, 504
REFUSED = {TOO_MANY: "queue full (429)", UNAVAILABLE: "cannot be in time (503)"}
"""Statuses of requests that are refused when they come."""
DROPPED = {0: "no answer", TOO_LATE: "deadline passed (504)"}
NO_WARMUP = Warmup(seconds=0.0, round_trips=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service(results.Result):
    """One run in real time."""

    send_lag_ms: float
    """p99 of how long after it was due a request was sent."""
    client_cores: float
    """CPU time of the load generators over the time of the run."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Load:
    """What one load generator sends."""

    mixture: Mixture
    plan: LoadPlan
    streams: Sequence[int]
    """Of each request that is listed; of clients one for all."""
    from_s: float = 0.0


def run(scenario: Scenario, *, say: Callable[[str], None] = lambda _: None) -> Service:
    """Serve a scenario once.

    Raises:
        WrongUse: the scenario cannot be served.
        TunerError: the server does not start, or cannot load a model; or the load generator fails.
    """
    began_s = time.monotonic()
    with opened(scenario) as engine:
        models = sum(group.copies for group in scenario.groups)
        say(f"{models} models deployed in {time.monotonic() - began_s:.1f} s")
        say(f"{scenario.seconds:g} s of requests")
        return drive(scenario, engine)


@contextlib.contextmanager
def opened(
    scenario: Scenario,
    *,
    settings: Mapping[str, Value] | None = None,
    program: Sequence[str] = SERVER,
) -> Iterator[EngineProcess]:
    """A server with all models of a scenario.

    Args:
        scenario: what is served.
        settings: of the serving core, beside the scenario's; `scheduling.policy` is clockwork unless they say
            otherwise.
        program: arguments of Python that make the server.

    Raises:
        WrongUse: the scenario cannot be served.
        TunerError: the server does not start, or cannot load a model.
    """
    _check(scenario)
    with EngineProcess.start(None, _settings(scenario, settings or {}), program=program) as engine:
        for group in scenario.groups:
            for name in group.names:
                engine.admin.deploy(_model(group), name, timeout_s=DEPLOY_TIMEOUT_S)
        yield engine


def drive(scenario: Scenario, engine: EngineProcess) -> Service:
    """Send a server the requests of a scenario whose models it serves.

    Raises:
        TunerError: the load generator fails, or the server is gone.
    """
    loads = list(_loads(scenario, engine.host, engine.port))
    return _service(scenario, loads, _driven(loads))


def _check(scenario: Scenario) -> None:
    """What can be emulated only.

    Raises:
        WrongUse: what it is.
    """
    models = sum(group.copies for group in scenario.groups)
    for group in scenario.groups:
        if group.model is None:
            raise WrongUse(
                f"scenario {scenario.name}: group {group.name!r} names no model to serve; give it `model:`, a "
                "bundled model or a file (docs/scenarios.md)"
            )
    if models > MOST_MODELS:
        raise WrongUse(
            f"scenario {scenario.name}: {models:,} models, expected at most {MOST_MODELS:,} to be served; emulate it"
        )
    if scenario.seconds > MOST_SECONDS:
        raise WrongUse(
            f"scenario {scenario.name}: {scenario.seconds:g} s, expected at most {MOST_SECONDS:g} s to be served; "
            "emulate it"
        )
    for stream in scenario.streams:
        if stream.clients and stream.deadline.factor != 1.0:
            raise WrongUse(
                f"scenario {scenario.name}: stream {stream.name!r} has clients whose deadlines grow, which can "
                "only be emulated; give it one deadline_ms"
            )
        if stream.clients * scenario.group(stream.group).copies > MOST_CONNECTIONS:
            raise WrongUse(
                f"scenario {scenario.name}: stream {stream.name!r} has more than {MOST_CONNECTIONS} clients, "
                "too many to be served; emulate it, or give it fewer"
            )


def _settings(scenario: Scenario, before: Mapping[str, Value]) -> Configuration:
    """Of the server: what the scenario says of workers and memory, and its own."""
    wanted = settings_of(scenario)
    found: dict[str, Value] = {
        "scheduling.policy": "clockwork",
        "replica.count": scenario.workers,
        **before,
        **scenario.settings,
    }
    if scenario.pages is not None:
        found["clockwork.memory_mb"] = max(1, round(scenario.pages * wanted.clockwork.page_mb))
    return Configuration(found)


def _model(group: Group) -> str:
    assert group.model is not None, "checked"
    return group.model


# What is sent


def _loads(scenario: Scenario, host: str, port: int) -> Iterator[_Load]:
    """One for all requests that come whatever happens, and one for each stream of clients."""
    sent = _Sent(scenario, host, port)
    for place, stream in enumerate(scenario.streams):
        if stream.clients:
            yield sent.clients(place, stream)
    listed = sent.listed()
    if listed is not None:
        yield listed


class _Sent:
    """Heads and bodies of a scenario's requests."""

    def __init__(self, scenario: Scenario, host: str, port: int) -> None:
        self._scenario = scenario
        self._host = host
        self._port = port
        self._signatures = {
            group.name: readiness.signature(
                host, port, payloads.infer_path(group.names[0]).removesuffix("/infer"), {}
            )
            for group in scenario.groups
        }

    def clients(self, place: int, stream: Stream) -> _Load:
        """Each connection is a client of one model."""
        scenario = self._scenario
        group = scenario.group(stream.group)
        book = _Book()
        sent = _payloads(group, self._signatures[group.name], stream, stream.deadline.first_s)
        order = [book.pair(sent, name, 0) for name in group.names for _ in range(stream.clients)]
        return _Load(
            book.mixture(order),
            LoadPlan(
                host=self._host,
                port=self._port,
                concurrency=len(order),
                each_its_own=True,
                seconds=scenario.seconds - stream.from_s,
                warmup=NO_WARMUP,
                timeout_s=stream.deadline.first_s + GRACE_S,
            ),
            [place],
            stream.from_s,
        )

    def listed(self) -> _Load | None:
        """All requests that come by the clock."""
        scenario = self._scenario
        names = [name for group in scenario.groups for name in group.names]
        book = _Book()
        made: dict[tuple[int, float], Payloads] = {}
        at_s, order, streams, longest_s = [], [], [], 0.0
        before_s = 0.0
        for request in arrivals.traffic(scenario):
            if request.client >= 0:
                continue
            stream = scenario.streams[request.stream]
            key = (request.stream, request.objective_s)
            if key not in made:
                group = scenario.group(stream.group)
                signature = self._signatures[group.name]
                made[key] = _payloads(group, signature, stream, request.objective_s)
            order.append(book.pair(made[key], names[request.model], len(order)))
            # No two are due at once, so that a time tells which request it was.
            before_s = max(request.at_s, float(np.nextafter(before_s, np.inf)))
            at_s.append(before_s)
            streams.append(request.stream)
            longest_s = max(longest_s, request.objective_s)
        if not order:
            return None
        in_flight = 2.0 * longest_s * len(order) / scenario.seconds
        plan = LoadPlan(
            host=self._host,
            port=self._port,
            concurrency=int(min(MOST_CONNECTIONS, 32 + in_flight)),
            rate_per_s=len(order) / scenario.seconds,
            spread="listed",
            offsets_s=tuple(at_s),
            seconds=scenario.seconds,
            warmup=NO_WARMUP,
            timeout_s=longest_s + GRACE_S,
        )
        return _Load(book.mixture(order), plan, streams)


class _Book:
    """Heads and bodies, each kept once."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int], int] = {}
        self._made: list[Head] = []
        self._first: dict[int, int] = {}
        """Of payloads, by what they are: the place of their first body."""
        self._bodies: list[bytes] = []
        self._kept: list[Payloads] = []

    def pair(self, sent: Payloads, name: str, number: int) -> tuple[int, int]:
        """Head and body of a request for a model, by its number."""
        first = self._first.get(id(sent))
        if first is None:
            first = self._first[id(sent)] = len(self._bodies)
            self._bodies += sent.requests
            self._kept.append(sent)  # else another one might get its number
        key = (name, id(sent))
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = len(self._made)
            self._made.append(Head(path=payloads.infer_path(name), headers=sent.headers))
        return head, first + number % len(sent.requests)

    def mixture(self, order: Sequence[tuple[int, int]]) -> Mixture:
        """All of it."""
        return Mixture(heads=tuple(self._made), bodies=tuple(self._bodies), order=order)


def _payloads(group: Group, signature: Signature, stream: Stream, deadline_s: float) -> Payloads:
    """Requests for a model of a group that carry their deadline: of its sample, or random inputs."""
    model = _model(group)
    found = None
    if model in zoo.names():
        with contextlib.suppress(WrongUse, ServingError):
            card = zoo.find(model)
            if card.sample is not None:
                found = payload_files.from_npz(
                    card.sample,
                    signature,
                    model=group.name,
                    most=ITEMS * stream.items,
                    client_batch=stream.items,
                )
    if found is None:
        found = payloads.synthetic(
            signature,
            ITEMS * stream.items,
            np.random.default_rng(0),
            model=group.name,
            client_batch=stream.items,
        )
    return _with_timeout(found, deadline_s)


def _with_timeout(sent: Payloads, deadline_s: float) -> Payloads:
    """The same requests with the protocol's parameter `timeout`."""
    length = int(sent.headers[oip_body.LENGTH_HEADER])
    heads = []
    for body in sent.requests:
        head = json.loads(body[:length])
        head["parameters"]["timeout"] = max(1, round(1e6 * deadline_s))
        heads.append(json.dumps(head, separators=(",", ":")).encode())
    longest = max(map(len, heads))
    requests = tuple(
        head.ljust(longest) + body[length:]
        for head, body in zip(heads, sent.requests, strict=True)
    )
    headers = {**sent.headers, oip_body.LENGTH_HEADER: str(longest)}
    return dataclasses.replace(sent, requests=requests, headers=headers)


# What becomes of it


def _driven(loads: Sequence[_Load]) -> list[LoadResult]:
    """All load generators at the same time."""
    with contextlib.ExitStack() as opened:
        # Left last: where something fails, closed generators end what the threads wait for.
        threads = opened.enter_context(concurrent.futures.ThreadPoolExecutor(len(loads)))
        generators = [opened.enter_context(Generator()) for _ in loads]
        ended = [
            threads.submit(_drive, generator, load)
            for generator, load in zip(generators, loads, strict=True)
        ]
        return [one.result() for one in ended]


def _drive(generator: Generator, load: _Load) -> LoadResult:
    generator.set_payloads(load.mixture)
    time.sleep(load.from_s)
    return generator.run(load.plan)


def _service(
    scenario: Scenario, loads: Sequence[_Load], found: Sequence[LoadResult]
) -> Service:
    ends: list[results.End] = []
    lags_s = []
    for load, one in zip(loads, found, strict=True):
        ends += _ends(scenario, load, one)
        lags_s.append(one.records.started_s - one.records.intended_s)
    counted = results.counted(scenario, ends)
    return Service(
        **{field.name: getattr(counted, field.name) for field in dataclasses.fields(counted)},
        send_lag_ms=1e3 * float(np.quantile(np.concatenate(lags_s), 0.99, method="higher")),
        client_cores=sum(one.client_cpu_s for one in found) / counted.seconds,
    )


def _ends(scenario: Scenario, load: _Load, found: LoadResult) -> Iterator[results.End]:
    """How each request ended: it is known by the second at which it was due."""
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
        at_s = load.from_s + due_s
        is_answered = 200 <= status < 300  # noqa: PLR2004 - HTTP's classes
        yield results.End(
            stream=stream,
            at_s=at_s,
            deadline_s=scenario.streams[stream].deadline.at(at_s),
            done_s=load.from_s + done_s,
            refused=None
            if is_answered
            else REFUSED.get(status) or DROPPED.get(status) or f"failed ({status})",
            at_once=status in REFUSED,
        )
