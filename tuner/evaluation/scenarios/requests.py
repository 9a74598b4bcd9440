"""Requests of a served scenario, each with its deadline.

There is one `ClientWorkload` for all timed requests, and one for each stream of clients.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np

from serving import zoo
from serving.errors import InvalidSettings, ServingError
from serving.model_spec import ModelSpec
from serving.tensors import input_values, sizes
from serving.values import Signature
from tuner.errors import UnknownSize, UsageError
from tuner.evaluation.scenarios import arrivals
from tuner.evaluation.scenarios.values import ModelGroup, Scenario, Stream
from tuner.launching import readiness
from tuner.load_generator import oip_body, payload_files, payloads, synthetic
from tuner.load_generator.payloads import MultiModelPayloads, Payloads, RequestRoute
from tuner.load_generator.plan import PhasePlan, Warmup
from tuner.values.study_record import InputSummary

GRACE_S = 5.0
"""Time after its deadline until a request counts as lost."""
MAX_CONNECTIONS = 500
"""Maximum number of connections; latency includes the time that a request waits for one."""
ITEMS = 16
NO_WARMUP = Warmup(seconds=0.0, round_trips=0)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientWorkload:
    """Workload of one load generator."""

    mixture: MultiModelPayloads
    plan: PhasePlan
    streams: Sequence[int]
    """Stream index of each timed request, or one index for all clients."""
    from_s: float = 0.0


def of_scenario(scenario: Scenario, host: str, port: int) -> Iterator[ClientWorkload]:
    """Yield one workload for all timed requests, and one for each stream of clients."""
    sent = _Sent(scenario, host, port)
    listed = sent.list_requests()
    if listed is not None:
        yield listed
    for place, stream in enumerate(scenario.streams):
        if stream.clients:
            yield sent.clients(place, stream)


class ScenarioRequests:
    """Requests of a scenario in a study, with new arrivals for each seed."""

    client_batch = 1
    """Always 1: the scenario sets the items per request, and metrics count requests."""
    varies: bool = False
    sent: InputSummary | None = None
    guessed: tuple[str, ...] = ()
    """This and the two attributes above have the same meaning as in `Payloads`."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._last: tuple[tuple[int, float], ClientWorkload] | None = None

    @property
    def is_synthetic(self) -> bool:
        """Whether some inputs are random."""
        return bool(self._random_groups)

    @property
    def description(self) -> str:
        """Description for notes and reports."""
        random = ", ".join(self._random_groups)
        return f"random inputs for {random}" if random else "samples of the models"

    @property
    def _random_groups(self) -> list[str]:
        groups = self._scenario.groups
        return [group.name for group in groups if _find_spec(model_of(group)).sample is None]

    def load(self, host: str, port: int, *, seed: int, seconds: float) -> ClientWorkload:
        """Return the workload of an evaluation; seed 0 gives the scenario's own arrivals.

        Raise UsageError if no request is due within `seconds`, or LaunchFailed if a model has no
        metadata.
        """
        key = (seed, seconds)
        if self._last is None or self._last[0] != key:
            scenario = dataclasses.replace(self._scenario, seconds=seconds)
            load = _Sent(scenario, host, port).list_requests(seed)
            if load is None:
                raise UsageError(
                    f"scenario {scenario.name}: no request is due within {seconds:g} s; "
                    "measure for longer (--seconds)"
                )
            self._last = (key, load)
        return self._last[1]


class _Sent:
    def __init__(self, scenario: Scenario, host: str, port: int) -> None:
        self._scenario = scenario
        self._host = host
        self._port = port
        self._made: dict[int, Payloads] = {}
        self._signatures = {
            group.name: readiness.signature(
                host, port, payloads.infer_path(group.names[0]).removesuffix("/infer"), {}
            )
            for group in scenario.groups
        }

    def clients(self, place: int, stream: Stream) -> ClientWorkload:
        """Return a workload in which each connection is a client of one model."""
        scenario = self._scenario
        group = scenario.group(stream.group)
        book = _Book()
        sent = self._requests(place, stream.deadline.first_s)
        order = [book.pair(sent, name, 0) for name in group.names for _ in range(stream.clients)]
        return ClientWorkload(
            book.mixture(order),
            PhasePlan(
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

    def _requests(self, place: int, deadline_s: float) -> Payloads:
        scenario = self._scenario
        stream = scenario.streams[place]
        sent = self._made.get(place)
        if sent is None:
            group = scenario.group(stream.group)
            sent = self._made[place] = _payloads(group, self._signatures[group.name], stream)
        deadlines = 1
        if stream.deadline.factor != 1.0:
            deadlines += int(scenario.seconds / stream.deadline.every_s)
        kept = sent.requests[: max(1, len(sent.requests) // deadlines)]
        return _with_timeout(dataclasses.replace(sent, requests=kept), deadline_s)

    def list_requests(self, draw: int = 0) -> ClientWorkload | None:
        """Return all timed requests, or None if there are none; for `draw`, see `draw_arrivals`."""
        scenario = self._scenario
        names = [name for group in scenario.groups for name in group.names]
        book = _Book()
        made: dict[tuple[int, float], Payloads] = {}
        at_s: list[float] = []
        order: list[tuple[int, int]] = []
        streams: list[int] = []
        before_s = max_s = 0.0
        for request in arrivals.draw_arrivals(scenario, draw):
            if request.client >= 0:
                continue
            key = (request.stream, request.objective_s)
            if key not in made:
                made[key] = self._requests(*key)
            order.append(book.pair(made[key], names[request.model], len(order)))
            # Due times are unique, so that a time identifies its request.
            before_s = max(request.at_s, float(np.nextafter(before_s, np.inf)))
            at_s.append(before_s)
            streams.append(request.stream)
            max_s = max(max_s, request.objective_s)
        if not order:
            return None
        in_flight = 2.0 * max_s * len(order) / scenario.seconds
        plan = PhasePlan(
            host=self._host,
            port=self._port,
            concurrency=int(min(MAX_CONNECTIONS, 32 + in_flight)),
            rate_per_s=len(order) / scenario.seconds,
            spread="listed",
            offsets_s=tuple(at_s),
            seconds=scenario.seconds,
            warmup=NO_WARMUP,
            timeout_s=max_s + GRACE_S,
        )
        return ClientWorkload(book.mixture(order), plan, streams)


class _Book:
    def __init__(self) -> None:
        self._heads: list[RequestRoute] = []
        self._bodies: list[bytes] = []
        self._places: dict[int, tuple[Payloads, int, dict[str, int]]] = {}
        """Id of payloads -> the payloads, index of their first body, and head indexes by model."""

    def pair(self, sent: Payloads, name: str, number: int) -> tuple[int, int]:
        if id(sent) not in self._places:
            self._places[id(sent)] = sent, len(self._bodies), {}
            self._bodies += sent.requests
        _, first, heads = self._places[id(sent)]
        if name not in heads:
            heads[name] = len(self._heads)
            self._heads.append(RequestRoute(path=payloads.infer_path(name), headers=sent.headers))
        return heads[name], first + number % len(sent.requests)

    def mixture(self, order: Sequence[tuple[int, int]]) -> MultiModelPayloads:
        return MultiModelPayloads(heads=tuple(self._heads), bodies=tuple(self._bodies), order=order)


def _payloads(group: ModelGroup, signature: Signature, stream: Stream) -> Payloads:
    card = _find_spec(model_of(group))
    if card.sample is not None:
        return payload_files.from_npz(
            card.sample,
            signature,
            model=group.name,
            most=ITEMS * stream.items,
            client_batch=stream.items,
        )
    try:
        plan = synthetic.plan_inputs(
            signature,
            input_values.value_specs_of((), signature),
            options={},
            card=sizes.sizes_of(card.shapes, source="shapes of model.yaml:"),
            told=" ".join(card.shapes),
        )
        made = plan.payloads(np.random.default_rng(0), model=group.name, client_batch=stream.items)
    except (InvalidSettings, UnknownSize) as error:
        raise UsageError(
            f"model {model_of(group)}: {error}; give shapes or samples in its folder's model.yaml (docs/models.md)"
        ) from error
    return dataclasses.replace(made, requests=made.requests[:ITEMS])


def _find_spec(model: str) -> ModelSpec:
    try:
        return zoo.find(model)
    except ServingError as error:
        raise UsageError(f"model {model}: {error}") from error


def _with_timeout(sent: Payloads, deadline_s: float) -> Payloads:
    length = int(sent.headers[oip_body.LENGTH_HEADER])
    heads = [json.loads(body[:length]) for body in sent.requests]
    for head in heads:
        head["parameters"]["timeout"] = max(1, round(1e6 * deadline_s))
    requests, header_bytes = oip_body.join_bodies(heads, [body[length:] for body in sent.requests])
    headers = {**sent.headers, oip_body.LENGTH_HEADER: str(header_bytes)}
    return dataclasses.replace(sent, requests=requests, headers=headers)


def model_of(group: ModelGroup) -> str:
    """Return the model whose copies a group serves."""
    assert group.model is not None, "checked"
    return group.model
