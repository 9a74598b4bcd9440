"""What Triton's own client gets of this server: 36 calls of `tritonclient` over REST and gRPC.

A server of `resnet` that compresses every answer is asked in all the ways in which the client asks: health,
metadata, configuration, statistics, index, inferences in every form, compressed, classified, asynchronous,
on a stream, with priorities and time limits; and for what Triton has and this server has not, which must be
refused at once, saying what is offered instead. Inferences must all give the scores of the first one.

    pip install 'tritonclient[http,grpc]'
    python benchmarks/triton_client.py [--write] [--json]

Ends with 1 when a call does not end as expected. Takes some seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import result
import server_process
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from serving import zoo

MODEL, INPUT, OUTPUT = "resnet", "image", "scores"
ITEMS = 8
STREAMED = 20
CLASSES = 3
REFUSED_S = 1.0
"""A refusal must be there within this time."""
CALL_TIMEOUT_S = 20.0
"""A call that has not ended by then has failed."""
NOT_OFFERED = "not offered by this server"


class Wrong(Exception):
    """A call has ended, and not as expected."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the client."""

    name: str
    over: str
    is_offered: bool
    ask: Callable[[], str]
    """Makes it; what came of it, or Wrong."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a call has ended."""

    call: Call
    is_as_expected: bool
    said: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One of the two clients, and what inferences must give."""

    over: str
    module: Any
    server: Any
    images: NDArray[np.uint8]
    scores: NDArray[np.float32]

    def given(self, **how: bool) -> list[Any]:
        """The input of an inference."""
        tensor = self.module.InferInput(INPUT, list(self.images.shape), "UINT8")
        tensor.set_data_from_numpy(self.images, **how)
        return [tensor]

    def infer(self, **how: Any) -> str:
        """An inference with options of the client."""
        return self.checked(self.server.infer(MODEL, self.given(), **how))

    def checked(self, answer: Any) -> str:
        """What came of an inference."""
        found = answer.as_numpy(OUTPUT)
        if found is None or not np.allclose(found, self.scores, rtol=1e-4, atol=1e-5):
            raise Wrong(f"other scores: {found!r:.60}")
        return f"{len(found)} x {found.shape[1]} scores"


def both(client: Client) -> Iterator[tuple[str, Callable[[], str]]]:
    """Calls that are the same over REST and gRPC."""
    server = client.server
    yield "is_server_live", lambda: _true(server.is_server_live())
    yield "is_server_ready", lambda: _true(server.is_server_ready())
    yield "is_model_ready", lambda: _true(server.is_model_ready(MODEL))
    yield "get_server_metadata", lambda: _named(server.get_server_metadata(), "luthier")
    yield "get_model_metadata", lambda: _named(server.get_model_metadata(MODEL), MODEL)
    yield "get_model_config", lambda: _config(server.get_model_config(MODEL))
    yield "get_inference_statistics", lambda: _statistics(server.get_inference_statistics(MODEL))
    yield "get_model_repository_index", lambda: _index(server.get_model_repository_index())
    yield "infer, class_count", lambda: _classes(client)


def of_rest(client: Client) -> Iterator[tuple[str, Callable[[], str]]]:
    """Calls of the REST client alone."""

    def in_json() -> str:
        wanted = client.module.InferRequestedOutput(OUTPUT, binary_data=False)
        given = client.given(binary_data=False)
        return client.checked(client.server.infer(MODEL, given, outputs=[wanted]))

    def later() -> str:
        return client.checked(client.server.async_infer(MODEL, client.given()).get_result())

    yield "infer, binary tensors", client.infer
    yield "infer, JSON tensors", in_json
    for name in ("gzip", "deflate"):
        how = {"request_compression_algorithm": name, "response_compression_algorithm": name}
        yield f"infer, {name} both ways", lambda how=how: client.infer(**how)
    yield "infer, priority and timeout", lambda: client.infer(priority=1, timeout=5_000_000)
    yield "async_infer", later


def of_grpc(client: Client) -> Iterator[tuple[str, Callable[[], str]]]:
    """Calls of the gRPC client alone."""
    said: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def say(result: Any, error: Any) -> None:
        said.put((result, error))

    def heard() -> str:
        answer, error = said.get()
        if error is not None:
            raise error
        return client.checked(answer)

    def later() -> str:
        how = {"priority": 1, "timeout": 5_000_000, "client_timeout": 5.0}
        client.server.async_infer(MODEL, client.given(), say, **how)
        return heard()

    def stream() -> str:
        client.server.start_stream(say)
        for number in range(STREAMED):
            client.server.async_stream_infer(MODEL, client.given(), request_id=str(number))
        for _ in range(STREAMED):
            heard()
        client.server.stop_stream()
        return f"{STREAMED} answers"

    yield "infer, client_timeout", lambda: client.infer(client_timeout=5.0)
    for name in ("gzip", "deflate"):
        yield f"infer, {name} both ways", lambda name=name: client.infer(compression_algorithm=name)
    yield "async_infer, priority and timeouts", later
    yield f"async_stream_infer, {STREAMED} requests", stream


def not_offered(client: Client) -> Iterator[tuple[str, Callable[[], str]]]:
    """Calls that must be refused."""
    server = client.server
    asked = {
        "register_system_shared_memory": lambda: server.register_system_shared_memory(
            "r", "/r", 64
        ),
        "register_cuda_shared_memory": lambda: server.register_cuda_shared_memory(
            "r", b"AAAA", 0, 64
        ),
        "get_trace_settings": server.get_trace_settings,
    }
    if client.over == "gRPC":
        asked["get_log_settings"] = server.get_log_settings
    for name, ask in asked.items():
        yield name, lambda ask=ask: _refused(ask)


def _true(said: bool) -> str:
    if said is not True:
        raise Wrong(f"{said!r}")
    return "true"


def _field(said: Any, *path: str | int) -> Any:
    """A field of a dictionary (REST) or of a message (gRPC)."""
    for name in path:
        said = (
            said[name] if isinstance(said, dict) or isinstance(name, int) else getattr(said, name)
        )
    return said


def _named(said: Any, name: str) -> str:
    if _field(said, "name") != name:
        raise Wrong(f"{said!r:.60}")
    return f"of {name}"


def _config(said: Any) -> str:
    config = said if isinstance(said, dict) else said.config
    size, dims = _field(config, "max_batch_size"), list(_field(config, "input", 0, "dims"))
    if size < 1 or [int(one) for one in dims] != [3, 32, 32]:
        raise Wrong(f"max_batch_size {size}, dims {dims}")
    return f"max_batch_size {size}, dims {dims}"


def _statistics(said: Any) -> str:
    count = int(_field(said, "model_stats", 0, "inference_count"))
    if count < ITEMS:
        raise Wrong(f"{count} inferences")
    return "inferences counted"


def _index(said: Any) -> str:
    models = said if isinstance(said, list) else said.models
    states = {_field(one, "name"): _field(one, "state") for one in models}
    if states.get(MODEL) != "READY":
        raise Wrong(f"{states}")
    return f"{MODEL} READY"


def _classes(client: Client) -> str:
    wanted = client.module.InferRequestedOutput(OUTPUT, class_count=CLASSES)
    found = client.server.infer(MODEL, client.given(), outputs=[wanted]).as_numpy(OUTPUT)
    places = [[int(text.decode().split(":")[1]) for text in item] for item in found]
    if places != np.argsort(-client.scores, axis=1, kind="stable")[:, :CLASSES].tolist():
        raise Wrong(f"{found!r:.60}")
    return f"the best {CLASSES} of each, as {found[0][0].decode()}"


def _refused(ask: Callable[[], object]) -> str:
    try:
        said = ask()
    except InferenceServerException as error:
        text = error.message()
        if NOT_OFFERED not in text or ";" not in text:
            raise Wrong(text) from error
        return f"refused: {text.partition(';')[2].strip()}"
    raise Wrong(f"answered: {said!r:.60}")


def calls(rest: Client, grpc: Client) -> Iterator[Call]:
    """All of them."""
    for client, own in ((rest, of_rest), (grpc, of_grpc)):
        for asks, is_offered in ((both, True), (own, True), (not_offered, False)):
            for name, ask in asks(client):
                yield Call(name=name, over=client.over, is_offered=is_offered, ask=ask)


def _too_long(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError(f"nothing in {CALL_TIMEOUT_S:g} s")


def ended(call: Call) -> Ended:
    """Make a call, in this thread: the REST client belongs to one."""
    began_s = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, CALL_TIMEOUT_S)
    try:
        said, is_right = call.ask(), True
    except (Wrong, InferenceServerException, TimeoutError) as error:
        said, is_right = str(error), False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.perf_counter() - began_s
    if not call.is_offered and seconds > REFUSED_S:
        is_right = False
    return Ended(call=call, is_as_expected=is_right, said=said, seconds=seconds)


def main() -> int:
    """Make all calls, one after another."""
    parser = argparse.ArgumentParser(description="what Triton's client gets of this server")
    result.add_options(parser)
    options = parser.parse_args()
    with np.load(zoo.find(MODEL).sample) as sample:
        images, labels = sample[INPUT][:ITEMS], sample["labels"][:ITEMS]
    with server_process.served(MODEL, {"server.gzip_min_bytes": 0}) as where:
        rest = tritonclient.http.InferenceServerClient(f"127.0.0.1:{where.port}")
        grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{where.grpc_port}")
        given = tritonclient.http.InferInput(INPUT, list(images.shape), "UINT8")
        given.set_data_from_numpy(images)
        scores = rest.infer(MODEL, [given]).as_numpy(OUTPUT)
        if (scores.argmax(1) == labels).sum() <= ITEMS // 2:
            parser.exit(1, f"the scores are not those of {MODEL}\n")
        over = [
            Client(over=name, module=module, server=server, images=images, scores=scores)
            for name, module, server in (
                ("REST", tritonclient.http, rest),
                ("gRPC", tritonclient.grpc, grpc),
            )
        ]
        signal.signal(signal.SIGALRM, _too_long)
        found = [ended(call) for call in calls(*over)]
        rest.close()
        grpc.close()
    return result.conclude(concluded(found), options)


def concluded(found: list[Ended]) -> result.Result:
    """Table and verdict."""
    offered = [one for one in found if one.call.is_offered]
    others = [one for one in found if not one.call.is_offered]
    right = sum(one.is_as_expected for one in offered), sum(one.is_as_expected for one in others)
    return result.Result(
        name="triton_client",
        question=f"Which of {len(found)} calls of Triton's own client does this server answer, over REST and gRPC?",
        target=(
            f"{len(offered)} of {len(found)} calls work, and the other {len(others)} are refused within "
            f"{REFUSED_S:g} s with what is offered instead"
        ),
        verdict=f"{right[0]} of {len(offered)} work, {right[1]} of {len(others)} are refused so",
        is_met=all(one.is_as_expected for one in found),
        tables=(
            result.Table(
                title="Calls",
                head=("call", "over", "expected", "what happened", "ms"),
                rows=[
                    (
                        one.call.name,
                        one.call.over,
                        "works" if one.call.is_offered else "is refused",
                        one.said if one.is_as_expected else f"FAILED: {one.said}",
                        f"{1e3 * one.seconds:.1f}",
                    )
                    for one in found
                ],
                left=4,
            ),
        ),
        figures={
            f"{one.call.over} {one.call.name}": {"said": one.said, "seconds": one.seconds}
            for one in found
        },
        packages=("tritonclient", "grpcio"),
        notes=("The client and the server share the machine; a call's time is the client's.",),
    )


if __name__ == "__main__":
    sys.exit(main())
