"""K: a network that delays, slows, chops and cuts, for five protocols: each request gets one answer or none.

The way stands between client and server (`tests.abuse.relay`). A cut leaves nothing behind, and counts as
499 at most: the server itself failed at nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.abuse import h2wire as h2
from tests.abuse import wire
from tests.abuse.relay import Relay, Way
from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.stages.memory import post, tensor

_JSON = tensor([1, 3], "[1,2,3]")
_HEADER = _JSON.replace(b',"data":[1,2,3]', b',"parameters":{"binary_data_size":3}')
_WAYS = {
    "1 ms": Way(delay_s=0.001),
    "50 ms": Way(delay_s=0.05),
    "200 ms": Way(delay_s=0.2),
    "64 KB/s": Way(bytes_per_s=65_536.0, piece_bytes=1024),
    "a byte at a time": Way(piece_bytes=1),
    "three bytes at a time": Way(piece_bytes=3, delay_s=0.001),
}


def requests() -> dict[str, bytes]:
    """One of each protocol over HTTP/1.1."""
    return {
        "Open Inference, JSON": post(_JSON, Connection="close"),
        "Open Inference, binary": post(
            _HEADER + b"\1\2\3", Connection="close", Inference_Header_Content_Length=len(_HEADER)
        ),
        "TensorFlow Serving": post(
            b'{"instances":[[1,2,3]]}', "/v1/models/echo:predict", Connection="close"
        ),
        "Clipper": post(b'{"input":[1,2,3]}', "/app/predict", Connection="close"),
    }


def run(context: Context) -> None:
    """Every way, then a cut at every byte."""
    port = context.subject.port
    for protocol, data in requests().items():
        wanted = {404} if protocol == "Clipper" else {200}
        for name, way in _WAYS.items():
            context.case(f"{protocol} over {name}", _one_answer(port, data, way, wanted))
        for name, way in _cuts(len(data), context.size(60, 5)):
            context.case(f"{protocol}, {name}", _at_most_one(port, data, way))
    for name, way in _WAYS.items():
        context.case(f"gRPC over {name}", _call(context.subject.grpc_port, way))
    size = len(h2.PREFACE + h2.settings() + h2.request(1))
    for name, way in _cuts(size, context.size(60, 5)):
        context.case(f"gRPC, {name}", _call(context.subject.grpc_port, way, is_cut=True))
    counted = re.findall(
        r'luthier_requests_total\{[^}]*status="(5\d\d)"[^}]*\} ([1-9]\S*)',
        context.subject.metrics(),
    )
    context.case("what the server counted", f"failures of its own: {counted}" if counted else None)


def _cuts(size: int, most: int) -> Iterator[tuple[str, Way]]:
    """Ways that end at a byte of the request, or of the answer."""
    step = max(1, size // most)
    for at in range(1, size, step):
        yield f"cut at byte {at}", Way(cut_request_at=at, resets=at % 2 == 0)
    for at in range(0, 300, max(1, 300 // most)):
        yield f"answer cut at byte {at}", Way(cut_answer_at=at + 1, resets=at % 2 == 0)


def _one_answer(port: int, data: bytes, way: Way, wanted: set[int]) -> str | None:
    with Relay(port, way) as relay:
        heard = wire.exchange(relay.port, [data], timeout_s=20.0)
    if len(heard.answers) != 1 or heard.rest:
        return f"{len(heard.answers)} answers and {heard.rest[:40]!r}"
    return (
        None
        if heard.statuses[0] in wanted
        else f"answered {heard.statuses[0]}: {heard.answers[0].body[:80]!r}"
    )


def _at_most_one(port: int, data: bytes, way: Way) -> str | None:
    with Relay(port, way) as relay:
        heard = wire.exchange(relay.port, [data], timeout_s=5.0)
    if not heard.closed:
        return "the connection stayed open"
    return f"{len(heard.answers)} answers" if len(heard.answers) > 1 else None


def _call(port: int, way: Way, *, is_cut: bool = False) -> str | None:
    with Relay(port, way) as relay, h2.Client(relay.port, timeout_s=20.0) as client:
        client.send(h2.PREFACE + h2.settings() + h2.request(1))
        for _ in range(40 if is_cut else 150):
            if client.heard.ended or not client.read(0.1):
                break
    ended = client.heard.ended.get(1, 0)
    if is_cut:
        return "answered twice" if ended > 1 else None
    return None if ended == 1 else f"{ended} answers"


STAGE = Stage(
    name="K",
    title="network: delays, cuts, single bytes",
    half=2,
    run=run,
    limit_s=360,
    modules={"hpack": "hpack"},
    allowance=Allowance(),
)
