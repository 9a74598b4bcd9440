"""Requests for many models: which head and body is sent when, as a real server sees it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.load_generator.conftest import OK
from tuner.load_generator.payloads import MultiModelPayloads, RequestRoute
from tuner.load_generator.plan import PhasePlan, Warmup
from tuner.load_generator.process import LazyRequests

pytestmark = pytest.mark.processes

COLD = Warmup(seconds=0.0, round_trips=0)
HEADS = tuple(
    RequestRoute(path=f"/models/{name}", headers={"X-Name": name}) for name in ("first", "second")
)
BODIES = (b"a", b"long body", b"")


def seen(serve, generator, mixture: MultiModelPayloads, **plan):
    """What a server was sent, by the time at which it came, and the records."""
    found: list[tuple[bytes, bytes, int]] = []

    def habit(peer):
        while (request := peer.request()) is not None:
            found.append((*request, peer.number))
            peer.socket.sendall(OK)

    server = serve(habit)
    generator.set_payloads(mixture)
    result = generator.run(
        PhasePlan(host="127.0.0.1", port=server.port, warmup=COLD, timeout_s=5.0, **plan)
    )
    return found, result


def test_every_request_is_sent_once_when_it_is_due(generator, serve) -> None:
    order = [(0, 0), (1, 1), (1, 2), (0, 1), (1, 0)]
    due_s = (0.0, 0.05, 0.1, 0.15, 0.2)
    mixture = MultiModelPayloads(heads=HEADS, bodies=BODIES, order=order)
    found, result = seen(
        serve,
        generator,
        mixture,
        concurrency=1,
        rate_per_s=20.0,
        spread="listed",
        offsets_s=due_s,
        seconds=0.3,
    )
    for (head, body, _), (which, what) in zip(found, order, strict=True):
        path, name = HEADS[which].path.encode(), HEADS[which].headers["X-Name"].encode()
        assert head.startswith(b"POST " + path + b" HTTP/1.1\r\n")
        assert b"X-Name: " + name + b"\r\n" in head
        assert body == BODIES[what]
    assert result.records.intended_s.tolist() == list(due_s), (
        "to the bit: it tells which one it was"
    )
    assert np.all(result.records.started_s >= result.records.intended_s)


def test_a_connection_can_be_a_client_of_one_model(generator, serve) -> None:
    mixture = MultiModelPayloads(heads=HEADS, bodies=BODIES, order=[(0, 0), (1, 1)])
    found, _ = seen(serve, generator, mixture, concurrency=4, each_its_own=True, requests=40)
    by_connection: dict[int, set[bytes]] = {}
    for _, body, number in found:
        by_connection.setdefault(number, set()).add(body)
    assert sorted(map(sorted, by_connection.values())) == [
        [BODIES[0]],
        [BODIES[0]],
        [BODIES[1]],
        [BODIES[1]],
    ]


def test_requests_are_put_together_as_the_order_says() -> None:
    mixture = MultiModelPayloads(heads=HEADS, bodies=BODIES, order=[(1, 0), (0, 1)])
    mixed = LazyRequests([b"H0 ", b"H1 "], BODIES, mixture.order_bytes())
    assert list(mixed) == [b"H1 1\r\n\r\na", b"H0 9\r\n\r\nlong body"]


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        MultiModelPayloads(heads=HEADS, bodies=BODIES, order=[])
