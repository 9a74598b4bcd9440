"""A: laws of everything that reads a body: nothing but a refusal escapes, and the cost follows the length.

Generated documents search for cost per byte (`hypothesis.target`); fixed bombs are tried at several lengths.
A reader may take 20 ms and 0.3 us a byte of CPU, and six times the body of memory and what a document of the
longest kind takes. Longer bodies are sent to a server, by stage G.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.abuse import targets
from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject

_ATOMS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 3, 10**18, 2**40, 2**63, 2**64, 1e308, -1e308, "",
     "x", "y", "z", "FP32", "BYTES", "INT8", "BOOL",
     "UINT64", "FP16", "\ud800", "1", [], {}, [[]], [1, 2], [[1, 2]], [[1], [2, 3]],
     ["a"], [True], [1, "a"], {"b64": "YQ=="}, {"b64": "!"}]
)  # fmt: skip
_KEYS = st.sampled_from(
    ["name", "shape", "datatype", "data", "parameters", "x", "z", "y", "b64",
     "binary_data_size", "binary_data", "timeout", "priority",
     "inputs", "outputs", "instances", "examples", "signature_name", "input", "input_batch",
     "uid", "label", "id", "config"]
)  # fmt: skip
_VALUES = st.recursive(
    _ATOMS | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


def _mixed(good: Any) -> st.SearchStrategy[Any]:
    """A good document in which any value may be another."""
    if isinstance(good, dict):
        whole = st.fixed_dictionaries(
            {}, optional={key: _mixed(value) for key, value in good.items()}
        )
        return whole | _VALUES if good else _VALUES
    if isinstance(good, list):
        return (
            st.lists(st.one_of(*[_mixed(value) for value in good]), max_size=4) | _VALUES
            if good
            else _VALUES
        )
    return st.just(good) | _VALUES


_TENSOR = {
    "name": "x",
    "shape": [1, 2],
    "datatype": "FP32",
    "data": [1, 2],
    "parameters": {"binary_data_size": 8},
}
_CLIPPER = {"input": [1, 2], "input_batch": [[1], [2]], "uid": 1, "label": 1, "query_id": 1}
_GOOD: dict[str, Any] = {
    "oip": {"inputs": [_TENSOR], "outputs": [{"name": "y", "parameters": {"binary_data": True}}], "id": "a",
            "parameters": {"timeout": 1, "priority": 1, "binary_data_output": True}},
    "tfs_rest": {"instances": [[1, 2], {"x": [1, 2]}], "inputs": {"x": [[1, 2]]},
                 "examples": [{"x": [1.0]}], "signature_name": ""},
    **dict.fromkeys(("clipper", "clipper_update"), _CLIPPER),
    "triton_load": {"parameters": {"config": "{}", "file:a": ""}},
}  # fmt: skip
_NUMBERS = st.integers(0, 200) | st.sampled_from([2**21 - 1, 2**28, 2**31, 2**63, 2**64 - 1])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


_PROTO = st.recursive(
    st.binary(max_size=12)
    | st.text(max_size=6).map(str.encode)
    | st.sampled_from([b"x", b"FP32", b"BYTES", b"y"]),
    lambda inner: st.lists(st.tuples(st.integers(1, 16), inner | _NUMBERS), max_size=6).map(
        lambda fields: b"".join(_field(number, content) for number, content in fields)
    ),
    max_leaves=24,
)


def bodies(name: str) -> st.SearchStrategy[bytes]:
    """Bodies for a reader: near good ones."""
    if name in _GOOD:
        return _mixed(_GOOD[name]).map(lambda value: json.dumps(value).encode())
    if name in {"oip_grpc", "tfs_grpc"}:
        return _PROTO
    if name == "oip_binary":
        documents = _mixed({"inputs": [{k: v for k, v in _TENSOR.items() if k != "data"}]})
        return st.tuples(documents, st.binary(max_size=40)).map(_with_header)
    good = list(targets.seeds(name))
    edits = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8)
    return st.tuples(st.sampled_from(good), edits, st.binary(max_size=30)).map(_edited)


def _with_header(parts: tuple[Any, bytes]) -> bytes:
    header = json.dumps(parts[0]).encode()[:65_535]
    return len(header).to_bytes(2, "little") + header + parts[1]


def _edited(parts: tuple[bytes, list[tuple[int, int]], bytes]) -> bytes:
    data = bytearray(parts[0])
    for place, value in parts[1]:
        if data:
            data[place % len(data)] = value
    return bytes(data) + parts[2]


def bombs(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Reader, name and bytes of some length: what was found to cost most."""

    def filled(start: bytes, element: bytes, end: bytes) -> bytes:
        return start + element * max(1, (size - len(start) - len(end)) // len(element)) + end

    instances = b'{"instances":['
    for name, element, last in (
        ("numbers, then a text", b"1,", b'"x"]}'), ("texts", b'"",', b'""]}'), ("b64", b'{"b64":""},', b'{"b64":""}]}'),
        ("empty rows", b"[],", b"[]]}"), ("uneven rows", b"[[]],", b"[[1]]]}"), ("nulls", b"null,", b"null]}"),
        ("objects", b'{"x":1},', b'{"x":1}]}'),
        ("long numbers", b"1" * 300 + b",", b"1]}"), ("floats", b"1e-308,", b"1]}"),
    ):  # fmt: skip
        yield "tfs_rest", name, filled(instances, element, last)
    yield "tfs_rest", "examples", filled(b'{"examples":[', b'{"x":1},', b'{"x":1}]}')
    yield "tfs_rest", "quotes", b'"' * size
    yield "tfs_rest", "escapes", filled(b'{"instances":["', b"\\\\", b'"]}')
    yield "tfs_rest", "deep", b"[" * size
    tensor = b'{"name":"x","shape":[%d],"datatype":"%b","data":['
    for datatype, element, last in (
        (b"BYTES", b'"",', b'""'),
        (b"FP32", b"1,", b"null"),
        (b"FP32", b"[],", b"[]"),
        (b"INT8", b"true,", b"1"),
    ):
        count = size // len(element)
        yield (
            "oip",
            f"{datatype.decode()} of {element!r}",
            filled(b'{"inputs":[' + tensor % (count, datatype), element, last + b"]}]}"),
        )
    yield (
        "oip",
        "a long output name",
        filled(b'{"inputs":[],"outputs":[{"name":"', b"ab c", b'"}]}'),
    )
    yield (
        "oip",
        "a long input name",
        filled(b'{"inputs":[{"name":"', b"ab c", b'","shape":[1],"datatype":"FP32","data":[1]}]}'),
    )
    one = b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]},'
    yield "oip", "many inputs", filled(b'{"inputs":[', one, one[:-1] + b"]}")
    yield (
        "oip",
        "many outputs",
        filled(b'{"inputs":[],"outputs":[', b'{"name":"y"},', b'{"name":"y"}]}'),
    )
    yield (
        "oip",
        "a long shape",
        filled(b'{"inputs":[{"name":"x","datatype":"FP32","data":[],"shape":[', b"1,", b"1]}]}"),
    )
    yield "oip", "many parameters", filled(b'{"inputs":[],"parameters":{', b'"a":1,', b'"b":1}}')
    yield "oip", "many keys", b"{" + b",".join(b'"%x":0' % i for i in range(size // 9)) + b"}"
    count = max(1, (size - 200) // 4)
    header = (
        b'{"inputs":[{"name":"x","shape":[%d],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}'
        % (count, 4 * count)
    )
    yield "oip_binary", "empty texts", len(header).to_bytes(2, "little") + header + bytes(4 * count)
    yield (
        "oip_grpc",
        "many inputs",
        _repeated(size, 5, _field(1, b"x") + _field(2, b"FP32") + _field(3, 0)),
    )
    yield "oip_grpc", "many outputs", _repeated(size, 6, _field(1, b"y"))
    yield "oip_grpc", "a long name", _field(1, b"ab c" * (size // 4))
    yield "oip_grpc", "a long output name", _field(6, _field(1, b"ab c" * (size // 4)))
    yield "oip_grpc", "many raw contents", _repeated(size, 7, b"")
    texts = _repeated(size, 8, b"")
    yield (
        "oip_grpc",
        "many texts",
        _field(
            5, _field(1, b"x") + _field(2, b"BYTES") + _field(3, len(texts) // 2) + _field(5, texts)
        ),
    )
    yield (
        "oip_grpc",
        "a long shape",
        _field(5, _field(1, b"x") + _field(2, b"FP32") + _field(3, b"\1" * size)),
    )
    yield "tfs_grpc", "many inputs", _repeated(size, 2, _field(1, b"x") + _field(2, b""))
    yield "tfs_grpc", "many filters", _repeated(size, 3, b"y")
    for name in ("clipper", "clipper_update"):
        for kind in ("input", "input_batch"):
            yield (
                name,
                f"{kind} of numbers",
                filled(b'{"uid":1,"label":1,"%b":[' % kind.encode(), b"1,", b"1]}"),
            )
        yield (
            name,
            "batch of rows",
            filled(b'{"uid":1,"label":1,"input_batch":[', b"[1],", b"[1]]}"),
        )
        yield name, "a long text", filled(b'{"uid":1,"label":1,"input":"', b"a", b'"}')
    yield "triton_load", "deep", filled(b'{"parameters":{"config":"', b"[", b'"}}')
    yield "triton_load", "many parameters", filled(b'{"parameters":{', b'"a":1,', b'"b":1}}')


def _repeated(size: int, number: int, content: bytes) -> bytes:
    one = _field(number, content)
    return one * max(1, size // len(one))


def run(context: Context) -> None:
    """Bombs, then generated bodies for every reader in turn."""
    for size in (1 << 16, 1 << 20) if context.is_quick else (1 << 16, 1 << 18, 1 << 20):
        for name, what, data in bombs(size):
            context.case(f"{name}, {what}, {size >> 10} KiB", wrong(name, data), data, target=name)
    examples = context.size(10_000, 300)
    for number, name in enumerate(targets.READERS):
        until_s = time.monotonic() + max(
            5.0, (context.left_s - 10) / (len(targets.READERS) - number)
        )
        for data, told in _searched(name, examples, context.rng, until_s, context.count):
            context.case(f"{name}: {told[:60]}", told, data, target=name)


class _TimeIsOver(BaseException):
    """The time of one reader is over: Hypothesis would go on generating if the law merely returned.

    No `Exception`, which it would take for a failure of the law and try again.
    """


@contextlib.contextmanager
def _until(until_s: float) -> Iterator[None]:
    """End what is done within, wherever it is: Hypothesis climbs for minutes without asking the law.

    By the CPU time of this process, for the stage's own time has the timer of the clock. It is raised again each
    second, for what raises in a destructor is lost. Hypothesis, interrupted within its own steps, may raise something
    else instead: that what it drew was flaky, or that its stack does not add up. The law raises nothing else.
    """
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True
        raise _TimeIsOver

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, max(1.0, until_s - time.monotonic()), 1.0)
    try:
        yield
    except _TimeIsOver:
        pass
    except Exception:
        if not is_over:
            raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _searched(
    name: str, examples: int, rng: random.Random, until_s: float, count: Callable[[int], None]
) -> list[tuple[bytes, str]]:
    """Bodies that are not read as promised, one for each way in which that shows."""
    found: dict[str, tuple[bytes, str]] = {}
    seen = [0]

    @seeded(rng.getrandbits(64))
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(bodies(name))
    def law(data: bytes) -> None:
        if time.monotonic() > until_s:
            raise _TimeIsOver  # where others have the core, the clock is ahead of the CPU time
        seen[0] += 1
        began_s = time.thread_time()
        told = targets.escaped(name, data)
        took_s = time.thread_time() - began_s
        if told is None and took_s > targets.allowed_s(data):
            told = _too_slow(name, data)
        if told is not None:
            found.setdefault(told.partition(":")[0] + told[:40], (data, told))
        target(took_s / (len(data) + 64), label="seconds a byte")

    with _until(until_s):
        law()
    count(seen[0] - len(found))
    return list(found.values())


def _too_slow(name: str, data: bytes) -> str | None:
    took_s = targets.cost(name, data)
    if took_s <= targets.allowed_s(data):
        return None
    return f"slow: {len(data)} bytes took {took_s * 1e3:.0f} ms, allowed {targets.allowed_s(data) * 1e3:.0f}"


def wrong(name: str, data: bytes) -> str | None:
    """What is not as promised with a body: what escapes, the cost, the memory; None: all is."""
    told = targets.escaped(name, data) or _too_slow(name, data)
    if told is None:
        most = targets.memory(name, data)
        if most > targets.MEMORY_BYTES + targets.MEMORY_FACTOR * len(data):
            told = f"memory: {len(data)} bytes took {most} at a time"
    return told


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored body again."""
    return wrong(case.replay["target"], case.data)


STAGE = Stage(
    name="A",
    title="readers: laws, and cost per byte",
    half=1,
    run=run,
    is_quick=True,
    limit_s=600,
    quick_limit_s=120,
    modules={"hypothesis": "hypothesis"},
    spec=None,
)
