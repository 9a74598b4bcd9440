"""Messages of the replica wire: round trips, and what is refused."""

import contextlib
import json
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.values import DeclaredInputs

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=10)
frames = st.lists(st.binary(max_size=20), max_size=5)


def body_of(message, kind):
    """The body of one whole message."""
    ((given_kind, body),) = wire.MessageParser().feed(message)
    assert given_kind is kind
    return body


@given(u32, i64, st.lists(texts))
def test_hello_round_trips(pid, now_ns, features):
    """HELLO reads as it was written."""
    hello = wire.encode_hello(pid=pid, monotonic_ns=now_ns, features=features)
    body = body_of(hello, wire.MessageType.HELLO)
    assert wire.parse_hello(body) == (1, pid, tuple(features), now_ns)


told_inputs = st.builds(
    DeclaredInputs,
    shapes=st.lists(texts).map(tuple),
    item_axis=st.dictionaries(texts, st.integers(0, 9)),
    shared=st.lists(texts).map(tuple),
    values=st.lists(texts).map(tuple),
    pad=st.dictionaries(texts, st.floats(allow_nan=False)),
    pad_to=st.none() | st.integers(1, 4096),
    unbatched=st.none() | texts,
    padding=st.none() | texts,
)
loads = st.builds(
    wire.LoadMessage,
    *(u64, i64, i64, u32, texts, texts, texts, st.none() | texts, st.integers(1, 64)),
    *(st.none() | texts, st.integers(1, 4096), st.floats(0, 3600), texts),
    *(u32, st.none() | u32, st.none() | texts, st.booleans()),
    *(told_inputs, st.none() | u32),
)


@given(loads)
def test_load_round_trips(load):
    """LOAD reads as it was written."""
    message = wire.encode_load(load)
    assert wire.parse_load(body_of(message, wire.MessageType.LOAD)) == load


def test_a_load_that_says_nothing_of_a_warm_up_asks_for_none():
    """Samples, largest batch and time may be missing; a whole number of seconds is a number."""
    fixed = struct.pack("<Qqq", 1, 0, 0)
    data = {"model": 1, "name": "m", "version": "1", "kind": "echo", "threads": 1}
    load = wire.parse_load(memoryview(fixed + json.dumps(data).encode()))
    assert (load.samples, load.max_items, load.warmup_s) == (None, 1, 0.0)
    assert load.device == "auto"
    load = wire.parse_load(memoryview(fixed + json.dumps({**data, "warmup_s": 2}).encode()))
    assert load.warmup_s == 2.0


@given(u64, u16, st.dictionaries(texts, texts))
def test_answers_round_trip(action, status, detail):
    """LOADED and UNLOADED read as they were written."""
    loaded = body_of(wire.encode_loaded(action, status, detail), wire.MessageType.LOADED)
    unloaded = body_of(wire.encode_unloaded(action, status, detail), wire.MessageType.UNLOADED)
    assert wire.parse_loaded(loaded) == (action, status, detail)
    assert wire.parse_unloaded(unloaded) == (action, status, detail)


@given(u64, i64, i64, u32)
def test_unload_round_trips(action, earliest_ns, latest_ns, model):
    """UNLOAD reads as it was written."""
    message = wire.encode_unload(action, model=model, earliest_ns=earliest_ns, latest_ns=latest_ns)
    body = body_of(message, wire.MessageType.UNLOAD)
    assert wire.parse_unload(body) == (action, earliest_ns, latest_ns, model)


def batches(request):
    """Requests of a batch: any, or all alike, as they mostly are."""
    alike = st.builds(lambda one, count: [one] * count, request, st.integers(1, 5))
    return st.lists(request, max_size=5) | alike


@given(u64, u32, i64, i64, batches(st.tuples(st.binary(max_size=20), u16, u32, u32)))
def test_infer_round_trips(action, model, earliest_ns, latest_ns, requests):
    """INFER reads as its head and its frames were written."""
    entries = [(len(frame), encoding, start, stop) for frame, encoding, start, stop in requests]
    head = wire.infer_head(action, model, earliest_ns, latest_ns, entries)
    message = head + b"".join(request[0] for request in requests)
    parsed = wire.parse_infer(body_of(message, wire.MessageType.INFER))
    assert (parsed.action_id, parsed.model) == (action, model)
    assert (parsed.earliest_ns, parsed.latest_ns) == (earliest_ns, latest_ns)
    assert parsed.entries == [
        (encoding, start, stop, frame) for frame, encoding, start, stop in requests
    ]


@given(u64, u16, i64, u64, u64, u64, batches(st.tuples(st.binary(max_size=20), u16)))
def test_result_round_trips(action, status, started, in_ns, exec_ns, out_ns, answers):
    """RESULT reads as its head and its frames were written."""
    times = wire.ReplicaTimes(started, in_ns, exec_ns, out_ns)
    head = wire.result_head(action, status, times, [(len(frame), code) for frame, code in answers])
    message = head + b"".join(frame for frame, _ in answers)
    parsed = wire.parse_result(body_of(message, wire.MessageType.RESULT))
    assert (parsed.action_id, parsed.status, parsed.times) == (action, status, times)
    assert parsed.entries == [(code, frame) for frame, code in answers]


PARSERS = [
    wire.parse_hello,
    wire.parse_load,
    wire.parse_loaded,
    wire.parse_unload,
    wire.parse_unloaded,
    wire.parse_infer,
    wire.parse_result,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(garbage=st.binary(max_size=200))
def test_garbage_is_read_or_refused(parse, garbage):
    """A body of any bytes is a message or a WireError; nothing else happens."""
    with contextlib.suppress(wire.WireError):
        parse(memoryview(garbage))


@given(u32, st.binary(max_size=64))
def test_counts_are_checked_before_they_are_believed(count, rest):
    """A batch that claims more entries than its body can hold is refused."""
    body = bytearray(wire.infer_head(1, 1, 0, 0, [])[8:] + rest)
    body[28:32] = count.to_bytes(4, "little")
    if count * 16 > len(rest):
        with pytest.raises(wire.WireError, match="entries alone"):
            wire.parse_infer(memoryview(body))


@pytest.mark.parametrize(
    ("phrase", "hello", "text"),
    [
        (
            "another version",
            b'{"wire": 2, "pid": 1, "features": [], "monotonic_ns": 0}',
            "version 2",
        ),
        ("no pid", b'{"wire": 1, "features": [], "monotonic_ns": 0}', "pid = None"),
        ("a pid that is a truth", b'{"wire": 1, "pid": true, "features": []}', "pid = True"),
        ("no object", b"[]", "list"),
        ("no JSON", b"{", "JSON"),
        ("nested too deep", b"[" * 200_000, "JSON"),
    ],
)
def test_other_hellos_are_refused(phrase, hello, text):
    """A HELLO that this side cannot work with is refused with the fact that is wrong."""
    with pytest.raises(wire.WireError, match=text):
        wire.parse_hello(memoryview(hello))


def test_unknown_json_keys_are_ignored():
    """A later version may add keys."""
    body = b'{"wire": 1, "pid": 1, "features": ["x"], "monotonic_ns": 0, "new": {}}'
    assert wire.parse_hello(memoryview(body)).features == ("x",)


@pytest.mark.parametrize("others", [[], [2], [2**31]])
@pytest.mark.parametrize("size", [2**31, 2**40])
def test_a_batch_above_a_message_is_refused(size, others):
    """Frames that the other side does not take, or have no place in a head, are refused where they are written."""
    sizes = [size, *others]
    with pytest.raises(wire.WireError, match="INFER would have"):
        wire.infer_head(1, 1, 0, 0, [(one, 0, 0, 0) for one in sizes])
    with pytest.raises(wire.WireError, match="RESULT would have"):
        wire.result_head(1, 0, wire.ReplicaTimes(0, 0, 0, 0), [(one, 0) for one in sizes])


def test_a_batch_above_what_the_gateway_takes_of_a_replica_is_refused():
    """It says so when it loads a model; without that, what a message can have is the limit."""
    times = wire.ReplicaTimes(0, 0, 0, 0)
    fixed = len(wire.result_head(1, 0, times, [])) - wire.HEAD.size + 2 * 8
    for sizes in ([500, 500], [400, 600]):
        frames = [(size, 0) for size in sizes]
        assert wire.result_head(1, 0, times, frames, fixed + 1000)
        with pytest.raises(wire.WireError, match=f"at most {fixed + 999} fit"):
            wire.result_head(1, 0, times, frames, fixed + 999)


def test_what_a_replica_says_of_a_load_is_bounded():
    """It is read on the thread that serves everybody, and a replica may be anybody's program."""
    detail = {"error": "a" * 2**20}
    for write, read in (
        (wire.encode_loaded, wire.parse_loaded),
        (wire.encode_unloaded, wire.parse_unloaded),
    ):
        with pytest.raises(wire.WireError, match="at most 1048576 are read"):
            read(memoryview(write(1, 0, detail))[wire.HEAD.size :])


def test_errors_pickle():
    """A WireError crosses a process boundary."""
    error = wire.WireError("text")
    assert str(pickle.loads(pickle.dumps(error))) == "text"
