"""What is compared: our server and its peers, each at every setting of a small sweep of its own.

A candidate is opened (its server starts, and one answer is compared with the right one), and is then
loaded by `wrk` for some seconds at a time. Every peer has a virtual environment of its own
(`peers/install.py`) and one file, `peers/serve_NAME.py`, in which its own documentation's fast way
is followed. TensorFlow Serving is no peer here: it has no server on PyPI or in Debian.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import http.client
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import bodies
import numpy as np
import server_process
import wrk

from serving import zoo

FOLDER = pathlib.Path(__file__).resolve().parent
CONNECTIONS = 20
PAYLOAD_BYTES = 3072

Settings = Mapping[str, Any]
Measure = Callable[..., wrk.Load]
"""`measure(seconds, connections=20, sent=Sent.ALIKE)` of an open candidate."""


class Sent(enum.Enum):
    """In what the requests of a load differ. What a server remembers of earlier ones helps it less and less."""

    ALIKE = "the same bytes"
    NUMBERED = "a field of the head"
    """`X-Request-Id` has a number of its own."""
    NAMED = "a field of the head, and the protocol's own id"
    """Beside it `id` in the JSON of those that speak the Open Inference Protocol; for others as NUMBERED."""


PLAIN = "luthier"
COMPILED = "luthier, compiled"
FORMS = {PLAIN: "python", COMPILED: "compiled"}
"""Our server's name on a page -> the form of the request path that it must be."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One model, one request, and what the answer must be."""

    name: str
    model: str
    """What a peer is told to serve: `echo`, or the path of the ONNX file."""
    tensor: Mapping[str, Any]
    """Name and datatype of the input, for the Open Inference Protocol."""
    shape: tuple[int, ...]
    payload: bytes
    is_right: Callable[[bytes], bool]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One server at one setting."""

    name: str
    setting: str
    open: Callable[[], contextlib.AbstractContextManager[Measure]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """How a peer is asked, and the settings that it is tried at."""

    package: str
    path: str
    sweeps: Mapping[str, Sequence[Settings]]
    """Workload -> settings, as its file in `peers/` reads them."""
    is_oip: bool = False
    """Whether it speaks the Open Inference Protocol; the others take and give the bytes alone."""


def _mosec(*rows: tuple[int, int, int, int]) -> list[Settings]:
    names = ("max_batch_size", "max_wait_ms", "workers", "threads")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _litserve(*rows: tuple[int, float, int, int, bool]) -> list[Settings]:
    names = ("max_batch_size", "batch_timeout_s", "workers", "api_servers", "fast_queue")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _bentoml(*rows: tuple[int, int, int]) -> list[Settings]:
    return [
        dict(zip(("max_batch_size", "max_latency_ms", "workers"), row, strict=True)) for row in rows
    ]


def _ray(*rows: tuple[int, float, int, tuple[str, ...]]) -> list[Settings]:
    names = ("max_batch_size", "wait_s", "replicas", "switches")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _triton(*rows: tuple[int, int, int | None, int, int]) -> list[Settings]:
    names = ("max_batch_size", "delay_us", "preferred", "instances", "threads")
    return [dict(zip(names, row, strict=True)) for row in rows]


_FAST = "RAY_SERVE_THROUGHPUT_OPTIMIZED"
_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"

PEERS: dict[str, Peer] = {
    "mosec": Peer(
        package="mosec",
        path="/inference",
        sweeps={
            "echo": _mosec(
                (1, 1, 1, 1), (8, 1, 1, 1), (10, 1, 1, 1), (16, 1, 1, 1), (20, 1, 1, 1), (32, 1, 1, 1),
                (8, 2, 1, 1), (16, 2, 1, 1), (20, 2, 1, 1), (8, 10, 1, 1), (16, 10, 1, 1), (20, 10, 1, 1),
            ),
            "resnet": _mosec(
                (1, 1, 2, 1), (4, 1, 2, 1), (8, 1, 2, 1), (8, 5, 2, 1), (10, 1, 2, 1), (10, 5, 2, 1),
                (16, 1, 2, 1), (20, 1, 2, 1), (4, 1, 3, 1), (8, 1, 3, 1), (10, 1, 1, 2), (20, 1, 1, 2),
            ),
        },
    ),
    "triton": Peer(
        package="nvidia-pytriton",
        path="/v2/models/model/infer",
        is_oip=True,
        sweeps={
            "echo": _triton(
                (1, 0, None, 1, 1), (8, 0, None, 1, 1), (10, 0, None, 1, 1), (16, 0, None, 1, 1),
                (20, 0, None, 1, 1), (32, 0, None, 1, 1), (8, 200, None, 1, 1), (16, 200, None, 1, 1),
                (20, 200, None, 1, 1), (8, 500, 8, 1, 1), (16, 500, 16, 1, 1), (20, 1000, 20, 1, 1),
            ),
            "resnet": _triton(
                (4, 0, None, 2, 1), (5, 0, None, 2, 1), (8, 0, None, 2, 1), (10, 0, None, 2, 1),
                (16, 0, None, 2, 1), (5, 1000, 5, 2, 1), (8, 1000, 8, 2, 1), (10, 1000, 10, 2, 1),
                (4, 0, None, 3, 1), (8, 0, None, 3, 1), (16, 0, None, 1, 2), (20, 1000, 20, 1, 2),
            ),
        },
    ),
    "litserve": Peer(
        package="litserve",
        path="/infer",
        sweeps={
            "echo": _litserve(
                (1, 0, 1, 1, False), (1, 0, 1, 1, True), (1, 0, 1, 2, True), (1, 0, 1, 3, True),
                (8, 0.001, 1, 1, True), (8, 0.001, 1, 2, True), (16, 0.001, 1, 1, True),
                (16, 0.001, 1, 2, True), (16, 0.001, 1, 3, True), (20, 0.001, 1, 2, True),
                (8, 0.005, 1, 2, True), (16, 0.005, 1, 2, True),
            ),
            "resnet": _litserve(
                (1, 0, 2, 1, True), (1, 0, 2, 2, True), (1, 0, 3, 2, True), (4, 0.001, 2, 1, True),
                (4, 0.001, 2, 2, True), (8, 0.001, 1, 1, True), (8, 0.001, 2, 1, True),
                (8, 0.001, 2, 2, True), (10, 0.001, 2, 2, True), (16, 0.002, 1, 1, True),
                (16, 0.002, 1, 2, True), (20, 0.002, 1, 2, True),
            ),
        },
    ),
    "bentoml": Peer(
        package="bentoml",
        path="/infer",
        sweeps={
            "echo": _bentoml(
                (1, 100, 1), (1, 1000, 1), (4, 100, 1), (4, 1000, 1), (8, 10, 1), (8, 100, 1),
                (8, 1000, 1), (16, 10, 1), (16, 100, 1), (16, 1000, 1), (20, 100, 1), (20, 1000, 1),
            ),
            "resnet": _bentoml(
                (1, 1000, 1), (1, 1000, 2), (1, 1000, 3), (4, 1000, 1), (4, 1000, 2), (8, 100, 2),
                (8, 1000, 1), (8, 1000, 2), (16, 100, 2), (16, 1000, 1), (16, 1000, 2), (20, 1000, 1),
            ),
        },
    ),
    "ray": Peer(
        package="ray",
        path="/",
        sweeps={
            "echo": _ray(
                (1, 0, 1, ()), (1, 0, 1, (_FAST,)), (8, 0.001, 1, (_FAST,)), (16, 0.001, 1, (_FAST,)),
                (1, 0, 1, (_FAST, _HAPROXY)), (4, 0.001, 1, (_FAST, _HAPROXY)),
                (8, 0.001, 1, (_FAST, _HAPROXY)), (10, 0.001, 1, (_FAST, _HAPROXY)),
                (16, 0.001, 1, (_FAST, _HAPROXY)), (20, 0.001, 1, (_FAST, _HAPROXY)),
                (8, 0.005, 1, (_FAST, _HAPROXY)), (16, 0.005, 1, (_FAST, _HAPROXY)),
            ),
            "resnet": _ray(
                (1, 0, 2, (_FAST,)), (8, 0.001, 2, (_FAST,)), (1, 0, 1, (_FAST, _HAPROXY)),
                (1, 0, 2, (_FAST, _HAPROXY)), (1, 0, 3, (_FAST, _HAPROXY)),
                (4, 0.001, 2, (_FAST, _HAPROXY)), (8, 0.001, 1, (_FAST, _HAPROXY)),
                (8, 0.001, 2, (_FAST, _HAPROXY)), (8, 0.005, 2, (_FAST, _HAPROXY)),
                (10, 0.001, 2, (_FAST, _HAPROXY)), (16, 0.001, 1, (_FAST, _HAPROXY)),
                (16, 0.001, 2, (_FAST, _HAPROXY)),
            ),
        },
    ),
}  # fmt: skip
"""The order is that of the sweep. For `echo` one process runs the model: that is the question."""

OURS: dict[str, list[Settings]] = {
    "echo": [
        {"batching.max_size": size, "batching.timeout_us": timeout}
        for size, timeout in (
            (1, 0), (8, 0), (10, 0), (16, 0), (20, 0), (32, 0),
            (8, 200), (16, 200), (20, 200), (8, 1000), (16, 1000), (20, 1000),
        )
    ],
    "resnet": [
        {"batching.max_size": size, "batching.timeout_us": timeout,
         "replica.count": count, "replica.threads": threads}
        for size, timeout, count, threads in (
            (4, 0, 2, 1), (5, 0, 2, 1), (8, 0, 2, 1), (10, 0, 2, 1), (16, 0, 2, 1), (5, 1000, 2, 1),
            (8, 1000, 2, 1), (10, 1000, 2, 1), (4, 0, 3, 1), (8, 0, 3, 1), (10, 0, 1, 2), (20, 0, 1, 2),
        )
    ],
}  # fmt: skip
"""As many settings as of every peer: whoever is tried at more has more luck."""


def echo() -> Workload:
    """3 KB of bytes, which come back."""
    payload = os.urandom(PAYLOAD_BYTES)
    return Workload(
        name="echo",
        model="echo",
        tensor={"name": "data", "datatype": "UINT8"},
        shape=(1, PAYLOAD_BYTES),
        payload=payload,
        is_right=functools.partial(bytes.__eq__, payload),
    )


def resnet() -> Workload:
    """One real image of 3 KB for the zoo's network; right is what ONNX Runtime says of it alone."""
    import onnxruntime  # noqa: PLC0415  echo is compared without it

    card = zoo.find("resnet")
    assert card.path is not None
    assert card.sample is not None
    with np.load(card.sample) as arrays:
        image = arrays["image"][:1]
    session = onnxruntime.InferenceSession(str(card.path), providers=["CPUExecutionProvider"])
    scores = session.run(None, {"image": image})[0][0]

    def is_right(answer: bytes) -> bool:
        return len(answer) == scores.nbytes and np.allclose(
            np.frombuffer(answer, np.float32), scores, atol=1e-3
        )

    return Workload(
        name="resnet",
        model=str(card.path),
        tensor={"name": "image", "datatype": "UINT8"},
        shape=image.shape,
        payload=image.tobytes(),
        is_right=is_right,
    )


def luthier(
    workload: Workload,
    settings: Settings,
    *,
    name: str = PLAIN,
    tree: pathlib.Path = server_process.ROOT,
) -> Candidate:
    """Our server at one setting: the one that this process would import, or another tree's."""
    start = functools.partial(server_process.luthier, workload.name, settings, tree=tree)
    path = f"/v2/models/{workload.name}/infer"
    return Candidate(
        name=name,
        setting=text(settings),
        open=functools.partial(_open, start, workload, path, is_oip=True),
    )


def peer(workload: Workload, name: str, settings: Settings, folder: pathlib.Path) -> Candidate:
    """A peer at one setting."""
    start = functools.partial(_start_peer, workload, name, settings, folder)
    path, is_oip = PEERS[name].path, PEERS[name].is_oip
    return Candidate(
        name=name,
        setting=text(settings),
        open=functools.partial(_open, start, workload, path, is_oip=is_oip),
    )


def version(name: str, folder: pathlib.Path) -> str | None:
    """What of this peer is installed, or none."""
    places = [str(place) for place in (folder / name).glob("lib/python3*/site-packages")]
    package = PEERS[name].package
    for found in importlib.metadata.distributions(name=package, path=places):
        return f"{package} {found.version}"
    return None


def text(settings: Settings) -> str:
    """Settings in one line, by their last names."""

    def value(found: Any) -> str:
        return " + ".join(found) or "none" if isinstance(found, tuple) else str(found)

    return ", ".join(
        f"{name.rpartition('.')[2]} {value(found)}" for name, found in settings.items()
    )


@contextlib.contextmanager
def _start_peer(
    workload: Workload, name: str, settings: Settings, folder: pathlib.Path
) -> Iterator[int]:
    port = server_process.free_port()
    told = {**settings, "model": workload.model, "port": port, "input": workload.tensor["name"]}
    command = [str(folder / name / "bin" / "python"), str(FOLDER / "peers" / f"serve_{name}.py")]

    def is_ready() -> bool:
        try:
            _ask(port, PEERS[name].path, workload, is_oip=PEERS[name].is_oip)
        except (OSError, http.client.HTTPException, wrk.WrongAnswers):
            return False
        return True

    environment = {"PEER": json.dumps(told), "PYTHONPATH": str(FOLDER / "peers")}
    with server_process.script(command, environment, port=port, is_ready=is_ready) as ready:
        yield ready


@contextlib.contextmanager
def _open(
    start: Callable[[], contextlib.AbstractContextManager[int]],
    workload: Workload,
    path: str,
    *,
    is_oip: bool,
) -> Iterator[Measure]:
    with start() as port:
        _ask(port, path, workload, is_oip=is_oip)

        def measure(
            seconds: int, connections: int = CONNECTIONS, sent: Sent = Sent.ALIKE
        ) -> wrk.Load:
            body = _body(workload, is_oip=is_oip, sent=sent)
            load = wrk.drive(
                port,
                path,
                body=body.data,
                headers=body.headers,
                connections=connections,
                seconds=seconds,
            )
            _ask(port, path, workload, is_oip=is_oip)
            return load

        measure(1)
        yield measure


def _body(workload: Workload, *, is_oip: bool, sent: Sent = Sent.ALIKE) -> bodies.Body:
    """What a server is asked, in its own form."""
    if is_oip:
        request_id = wrk.NUMBERED if sent is Sent.NAMED else None
        body = bodies.binary(
            workload.tensor, workload.shape, workload.payload, request_id=request_id
        )
    else:
        body = bodies.Body(workload.payload, {"Content-Type": "application/octet-stream"})
    if sent is not Sent.ALIKE:
        body.headers["X-Request-Id"] = wrk.NUMBERED
    return body


def _ask(port: int, path: str, workload: Workload, *, is_oip: bool) -> None:
    """One request, whose answer is compared with the right one."""
    body = _body(workload, is_oip=is_oip)
    status, headers, answer = server_process.request(port, "POST", path, body.data, body.headers)
    if status == 200 and is_oip:
        answer = bodies.output_bytes(headers, answer)
    if status != 200 or not workload.is_right(answer):
        raise wrk.WrongAnswers(f"{path}: not the right answer: status {status}, {answer[:200]!r}")
