"""One connection of HTTP/2 without a socket: requests in, answers out, and bounds on what a client may cost."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import serving
from serving.api.http2 import fields, frame_reader, frames, incoming, session
from serving.api.http2.events import RequestReady, RequestRefused, StreamReset
from serving.api.http2.frames import ErrorCode, FrameType, Setting
from serving.api.http2.outgoing import BUFFERED_BYTES, Outgoing, SendBufferFull
from serving.api.http2.session import Session
from serving.errors import BodyTooLarge
from tests.fakes.http2_client import CALL, SMALL_WINDOW, Client, Turned, goaway_code

HEAD = fields.status(200) + fields.literal(b"content-type", b"application/grpc")
TRAILERS = fields.literal(b"grpc-status", b"0")
HELLO = frames.PREFACE + frames.settings({})


def opened(values=None, max_body_bytes=1 << 20):
    """A session whose client has said hello, and that client."""
    client, it = Client(), Turned(Session(max_body_bytes=max_body_bytes))
    assert it.receive(client.hello(values)) == []
    client.read(it.take())
    return it, client


def answer(client, it):
    """What an answer that was just sent holds: fields, data, trailers."""
    found = client.read(it.take())
    heads = [payload for kind, _, _, payload in found if kind is FrameType.HEADERS]
    data = b"".join(payload for kind, _, _, payload in found if kind is FrameType.DATA)
    return heads[0], data, heads[-1]


def test_a_call_and_its_answer():
    """A request comes out whole with its fields, and its answer in three parts, the last of which ends the stream."""
    it, client = opened()
    (event,) = it.receive(client.request(1, b"body"))
    assert isinstance(event, RequestReady)
    assert (event.stream, event.fields.pairs, event.body) == (1, tuple(CALL), b"body")
    assert it.waiting
    it.respond(1, HEAD, b"answer", TRAILERS)
    found = client.read(it.take())
    assert [kind for kind, *_ in found] == [FrameType.HEADERS, FrameType.DATA, FrameType.HEADERS]
    assert found[0][3] == [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert found[1][3] == b"answer"
    assert found[2][1] & frames.END_STREAM
    assert it.streams == 0


@pytest.mark.parametrize(
    ("piece", "turns"),
    [
        (frames.frame(FrameType.PING, 0, 0, bytes(8)), 2000 // session.TURN),
        (frames.window_update(0, 1), 2000 // session.TURN),
    ],
    ids=["ping", "window"],
)
def test_a_turn_reads_so_many_frames(piece, turns):
    """However much comes at once: others have their turn in between, and what is left stays as it was."""
    it = Session(max_body_bytes=1 << 20)
    it.receive(HELLO + piece * 2000 + piece[:5])
    taken = 1
    while it.has_more:
        it.go_on()
        taken += 1
    assert turns <= taken <= turns + 1
    it.receive(piece[5:])
    assert not it.closed


def test_a_turn_reads_few_heads_few_large_requests_and_few_bytes():
    """What costs more than a frame counts for more, in one piece or in many."""
    client, it = Client(), Session(max_body_bytes=1 << 20)
    long = [*CALL, *((b"a%d" % place, b"b" * 150) for place in range(60))]
    it.receive(client.hello() + b"".join([client.headers(n, long) for n in range(1, 41, 2)]))
    assert 0 < it.streams <= 5
    while it.has_more:
        it.go_on()
    assert it.streams == 20
    client, it = Client(), Session(max_body_bytes=1 << 20)
    whole = b"".join([client.request(stream, bytes(100_000)) for stream in (1, 3, 5)])
    (first,) = it.receive(client.hello() + whole)
    assert [event.stream for event in (first, *it.go_on(), *it.go_on())] == [1, 3, 5]
    client, it = Client(), Session(max_body_bytes=1 << 20)
    it.receive(client.hello())
    pieces = 0
    while not it.has_more:
        it.receive(
            client.headers(2 * pieces + 1) + client.data(2 * pieces + 1, bytes(50_000), end=False)
        )
        pieces += 1
    assert 5 <= pieces <= 11


@given(st.data())
def test_the_pieces_of_a_stream_do_not_matter(data):
    """However the bytes are cut, the same requests come out in the same order."""
    client = Client()
    bodies = data.draw(st.lists(st.binary(max_size=300), max_size=5))
    whole = client.hello() + b"".join(
        client.headers(2 * i + 1)
        + client.data(2 * i + 1, body, frame_bytes=data.draw(st.integers(1, 100)))
        for i, body in enumerate(bodies)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    it = Turned(Session(max_body_bytes=1 << 20))
    events = []
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        events += it.receive(whole[start:stop])
    assert [event.body for event in events] == bodies
    assert not it.closed


def test_settings_and_pings_are_answered():
    """SETTINGS are acknowledged, and a PING comes back with its bytes."""
    it, client = opened()
    it.receive(frames.settings({Setting.HEADER_TABLE_SIZE: 0}))
    it.receive(frames.frame(FrameType.PING, 0, 0, b"12345678"))
    found = client.read(it.take())
    assert found == [
        (FrameType.SETTINGS, frames.ACK, 0, b""),
        (FrameType.PING, frames.ACK, 0, b"12345678"),
    ]


def test_padding_priority_and_continuation():
    """Padding and priority are taken off, and a head may come in pieces."""
    it, client = opened()
    block = client.encoder.encode(CALL)
    first = b"\x03" + b"\0" * 5 + block[:4] + b"\0" * 3
    it.receive(frames.frame(FrameType.HEADERS, frames.PADDED | frames.PRIORITY, 1, first))
    it.receive(frames.frame(FrameType.CONTINUATION, 0, 1, block[4:9]))
    it.receive(frames.frame(FrameType.CONTINUATION, frames.END_HEADERS, 1, block[9:]))
    padded = frames.frame(FrameType.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x02body\0\0")
    (event,) = it.receive(padded)
    assert event.fields.pairs == tuple(CALL)
    assert event.body == b"body"


def test_a_client_that_ends_with_trailers():
    """A request may end with fields of its own instead of data."""
    it, client = opened()
    assert it.receive(client.headers(1) + client.data(1, b"body", end=False)) == []
    end = frames.END_HEADERS | frames.END_STREAM
    (event,) = it.receive(client.headers(1, [(b"x", b"y")], flags=end))
    assert event.body == b"body"


def test_a_cancelled_call():
    """RST_STREAM of a call in flight is told once, and its answer is dropped."""
    it, client = opened()
    it.receive(client.request(1))
    assert it.receive(frames.reset(1, ErrorCode.CANCEL)) == [StreamReset(1)]
    assert it.receive(frames.reset(1, ErrorCode.CANCEL)) == []
    it.respond(1, HEAD, b"late", TRAILERS)
    assert it.take() == []


def test_a_cancelled_upload_is_not_told():
    """Of a request that never came whole, nobody knew."""
    it, client = opened()
    it.receive(client.headers(1) + client.data(1, b"part", end=False))
    assert it.receive(frames.reset(1, ErrorCode.CANCEL)) == []
    assert it.streams == 0


@pytest.mark.parametrize("ended", [False, True])
def test_a_body_above_the_limit(ended):
    """It is told once, what follows is dropped, and the answer tells the client to stop sending."""
    it, client = opened(max_body_bytes=100)
    (event,) = it.receive(client.headers(1) + client.data(1, b"x" * 101, end=ended))
    assert isinstance(event, RequestRefused)
    assert isinstance(event.error, BodyTooLarge)
    it.respond_short(1, HEAD)
    found = client.read(it.take())
    assert found[0][1] & frames.END_STREAM
    assert [kind for kind, *_ in found[1:]] == ([] if ended else [FrameType.RST_STREAM])
    assert it.receive(client.data(1, b"x" * 100)) == []
    assert not it.closed
    assert len(it.receive(client.request(3))) == 1


@given(
    st.integers(0, 70_000),
    st.integers(0, 3000),
    st.lists(st.integers(1, 20_000), max_size=40),
    st.booleans(),
)
def test_answers_keep_to_the_windows(size, window, updates, on_connection):
    """Never more data than the client allows; all of it, in order, once it allows enough."""
    it, client = opened({Setting.INITIAL_WINDOW_SIZE: window})
    it.receive(client.request(1))
    whole = bytes(i % 251 for i in range(size))
    it.respond(1, HEAD, whole, TRAILERS)
    allowed = {1: window, 0: frames.DEFAULT_WINDOW_BYTES}
    got, ended = b"", False

    def read():
        nonlocal got, ended
        for kind, flags, _, payload in client.read(it.take()):
            got += payload if kind is FrameType.DATA else b""
            ended |= kind is FrameType.HEADERS and bool(flags & frames.END_STREAM)
        assert len(got) <= min(allowed.values())
        assert got == whole[: len(got)]

    read()
    for update in updates:
        stream = 0 if on_connection and update % 2 else 1
        allowed[stream] += update
        it.receive(frames.window_update(stream, update))
        read()
    for stream in (0, 1):
        allowed[stream] += size
        it.receive(frames.window_update(stream, size or 1))
        read()
    assert got == whole
    assert ended
    assert it.streams == 0


def test_a_changed_initial_window_frees_what_waits():
    """SETTINGS change the windows of streams that are open."""
    it, client = opened(SMALL_WINDOW)
    it.receive(client.request(1))
    it.respond(1, HEAD, b"x" * 1500, TRAILERS)
    assert len(answer(client, it)[1]) == 1000
    it.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1500}))
    found = client.read(it.take())
    assert sum(len(payload) for kind, *_, payload in found if kind is FrameType.DATA) == 500
    assert it.streams == 0


def uploads(it, client, sizes):
    """Bodies sent in turn by a client that keeps to its windows; the streams in the order in which they ended."""
    left = {2 * i + 1: size for i, size in enumerate(sizes)}
    window = dict.fromkeys(left, session.WINDOW_BYTES)
    ended, most = [], 0
    for stream in left:
        it.receive(client.headers(stream))
    while left:
        moved = False
        for stream in list(left):
            size = min(left[stream], window[stream], frames.DEFAULT_FRAME_BYTES)
            if not size:
                continue
            moved = True
            left[stream] -= size
            window[stream] -= size
            last = not left[stream]
            for event in it.receive(client.data(stream, b"x" * size, end=last)):
                ended.append(event.stream)
                it.respond(event.stream, HEAD, b"", TRAILERS)
            if last:
                del left[stream]
            most = max(most, it.incoming.held_bytes)
            for kind, _, on, payload in client.read(it.take()):
                if kind is FrameType.WINDOW_UPDATE and on in window:
                    window[on] += struct.unpack(">I", payload)[0]
        assert moved, "nobody may send any more"
    return ended, most


def test_uploads_that_are_too_large_together_end_one_after_another(monkeypatch):
    """Unfinished bodies above the budget wait for one another; none waits for ever."""
    monkeypatch.setattr(incoming, "BUDGET_BYTES", 600_000)
    it, client = opened(max_body_bytes=4_000_000)
    ended, most = uploads(it, client, [2_000_000] * 6)
    assert sorted(ended) == [1, 3, 5, 7, 9, 11]
    assert most <= 600_000 + 6 * session.WINDOW_BYTES + 2_000_000
    assert it.incoming.held_bytes == 0


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 900_000), min_size=1, max_size=8))
def test_every_upload_ends(sizes):
    """Whatever the sizes, a client that keeps to its windows gets all its bodies through."""
    before, incoming.BUDGET_BYTES = incoming.BUDGET_BYTES, 300_000
    try:
        it, client = opened(max_body_bytes=4_000_000)
        ended, _ = uploads(it, client, sizes)
    finally:
        incoming.BUDGET_BYTES = before
    assert sorted(ended) == [2 * i + 1 for i in range(len(sizes))]
    assert it.incoming.held_bytes == 0


def test_a_client_that_ignores_its_window(monkeypatch):
    """More than the window resets the stream, and the others go on."""
    monkeypatch.setattr(incoming, "BUDGET_BYTES", 0)
    it, client = opened(max_body_bytes=4_000_000)
    it.receive(client.headers(1) + client.data(1, b"x" * session.WINDOW_BYTES, end=False))
    it.receive(client.headers(3) + client.data(3, b"x" * session.WINDOW_BYTES, end=False))
    client.read(it.take())  # the first may go on, the second waits for it
    it.receive(client.data(3, b"x", end=False))
    (found,) = client.read(it.take())
    assert found[0] is FrameType.RST_STREAM
    assert found[2] == 3
    assert not it.closed
    assert len(it.receive(client.data(1, b"x"))) == 1


def test_too_many_calls_at_a_time_are_refused_and_may_come_again():
    """A call above the limit is reset in the way that lets the client send it again."""
    it, client = opened()
    for i in range(session.MAX_STREAMS):
        it.receive(client.request(2 * i + 1))
    it.take()
    stream = 2 * session.MAX_STREAMS + 1
    assert it.receive(client.request(stream)) == []
    (found,) = client.read(it.take())
    assert found == (FrameType.RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.REFUSED_STREAM))


@pytest.mark.parametrize(
    "flood",
    [
        frames.frame(FrameType.PING, 0, 0, b"12345678"),
        frames.settings({}),
        frames.frame(FrameType.PRIORITY, 0, 1, b"\0" * 5),
        frames.frame(FrameType.DATA, 0, 1),
        frames.frame(99, 0, 0),
    ],
    ids=["ping", "settings", "priority", "empty data", "unknown"],
)
def test_floods_end_the_connection(flood):
    """Frames that only cost are borne up to a number; time makes it anew."""
    it, client = opened()
    it.receive(client.headers(1))
    half = flood * (frame_reader.PATIENCE - 10)
    it.receive(half)
    it.input.refresh()
    it.receive(half)
    assert not it.closed
    it.receive(half)
    assert it.closed
    assert goaway_code(client.read(it.take())) == ErrorCode.ENHANCE_YOUR_CALM


def blocked(streams):
    """A session with that many answers for whose data the client has no window."""
    it, client = opened({Setting.INITIAL_WINDOW_SIZE: 0})
    for stream in range(1, 2 * streams, 2):
        it.receive(client.request(stream))
        it.respond(stream, HEAD, b"answer", TRAILERS)
    client.read(it.take())
    return it, client


@pytest.mark.skipif(
    serving.form() == "compiled", reason="counts calls that a compiled class makes directly"
)
def test_a_connection_that_grows_by_single_bytes_costs_no_walk_over_what_waits(monkeypatch):
    """Answers that wait for their own streams are not looked at for each of its frames."""
    it, client = blocked(100)
    looked_at = []
    sent = Outgoing._send_rest
    monkeypatch.setattr(
        Outgoing, "_send_rest", lambda self, s: looked_at.append(s) or sent(self, s)
    )
    it.receive(frames.window_update(0, 1) * 1000)
    assert looked_at == []
    it.receive(frames.window_update(3, 6))
    assert looked_at == [3]
    assert answer(client, it)[1] == b"answer"


def test_only_the_last_window_of_a_frame_of_settings_counts():
    """2730 windows in one frame: answers leave by the last one alone, and a frame costs one change."""
    it, client = blocked(3)
    pairs = [struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, n % 7) for n in range(2730)]
    it.receive(frames.frame(FrameType.SETTINGS, 0, 0, b"".join(pairs)))  # 2729 % 7 = 6
    found = client.read(it.take())
    assert [p for kind, _, _, p in found if kind is FrameType.DATA] == [b"answer"] * 3
    assert it.streams == 0


def test_windows_that_settings_make_too_large_end_the_connection():
    """RFC 9113, section 6.9.2: a change of the initial window must not overflow that of a stream."""
    it, client = opened()
    it.receive(client.headers(1))
    it.receive(frames.window_update(1, frames.MAX_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES))
    it.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: frames.DEFAULT_WINDOW_BYTES + 1}))
    assert goaway_code(client.read(it.take())) == ErrorCode.FLOW_CONTROL_ERROR


def test_a_body_in_many_pieces_takes_no_more_memory_than_its_bytes():
    """Two bytes a frame: an object for each would take twenty times the body."""
    it, client = opened()
    it.receive(client.headers(1))
    pieces = client.data(1, b"ab" * 20_000, end=False, frame_bytes=2)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        it.receive(pieces)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 80_000
    (event,) = it.receive(client.data(1, b"!"))
    assert event.body == b"ab" * 20_000 + b"!"


def test_goaway_fits_a_frame_whatever_it_quotes():
    """The text of an error may quote a whole head, which is larger than a frame may be."""
    it, client = opened()
    block = b"\x7f" + b"\xff" * 60_000
    first, *others = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    it.receive(frames.frame(FrameType.HEADERS, 0, 1, first))
    for place, piece in enumerate(others, 1):
        flags = frames.END_HEADERS if place == len(others) else 0
        it.receive(frames.frame(FrameType.CONTINUATION, flags, 1, piece))
    pieces = it.take()
    assert sum(map(len, pieces)) < 1000
    assert goaway_code(client.read(pieces)) == ErrorCode.COMPRESSION_ERROR


PING = frames.frame(FrameType.PING, 0, 0, bytes(8))


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (HELLO[:5], HELLO[5:]),
        (HELLO + PING[:1], PING[1:]),
        (HELLO + PING[:-1], PING[-1:]),
        (
            HELLO + frames.frame(FrameType.HEADERS, 0, 1, b"\x83"),
            frames.frame(FrameType.CONTINUATION, frames.END_HEADERS, 1, b"\x86\x84"),
        ),
    ],
    ids=["preface", "head of a frame", "frame", "head"],
)
def test_what_does_not_come_to_its_end_is_told(start, rest):
    """A frame, a head or the preface that goes on and on; its rest ends it."""
    it = Session(max_body_bytes=100)
    it.receive(start[:-1])
    it.receive(start[-1:])
    assert not it.input.is_stuck(0.0)
    assert it.input.is_stuck(1.0)
    it.now_s = 5.0
    it.receive(rest[:1])
    assert it.input.is_stuck(1.0) is (len(rest) > 1)
    it.receive(rest[1:])
    assert not it.closed
    assert not it.input.is_stuck(1.0)


def test_rapid_resets_end_the_connection():
    """Calls that are cancelled as soon as they are made are work for nothing, too."""
    it, client = opened()
    for i in range(frame_reader.PATIENCE + 1):
        it.receive(client.request(2 * i + 1) + frames.reset(2 * i + 1, ErrorCode.CANCEL))
    assert it.closed


def test_a_head_without_end():
    """CONTINUATION frames are joined up to a limit."""
    it, client = opened()
    it.receive(frames.frame(FrameType.HEADERS, 0, 1, b""))
    for _ in range(5):
        it.receive(frames.frame(FrameType.CONTINUATION, 0, 1, b"\0" * 16_000))
    assert it.closed
    assert goaway_code(client.read(it.take())) == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(FrameType.PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.HEADERS, 5, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.HEADERS, 4, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.HEADERS, 4, 1, b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (HELLO + frames.frame(FrameType.HEADERS, 0, 1, b"") + frames.settings({}), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.PUSH_PROMISE, 4, 1, b"\0" * 4), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.reset(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.window_update(1, 5), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.PREFACE + frames.settings({Setting.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.settings({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (HELLO + frames.frame(FrameType.PING, 0, 0, b""), ErrorCode.FRAME_SIZE_ERROR),
        (HELLO + frames.frame(FrameType.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (HELLO + frames.HEAD.pack(20_000 << 8, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_ends_the_connection(sent, code):
    """The client is told why, and nothing more is read."""
    it, client = Turned(Session(max_body_bytes=1000)), Client()
    it.receive(sent)
    assert it.closed
    assert goaway_code(client.read(it.take())) == code
    assert it.receive(client.hello() + client.request(1)) == []


def test_calls_in_flight_hear_of_a_broken_connection():
    """What breaks the connection cancels the calls on it."""
    it, client = opened()
    it.receive(client.request(1) + client.request(3))
    assert set(it.receive(frames.window_update(0, 0))) == {StreamReset(1), StreamReset(3)}


def test_going_away():
    """Calls that came are answered; newer ones are neither looked at nor an error."""
    it, client = opened()
    it.receive(client.request(1))
    it.go_away()
    it.go_away()
    (found,) = client.read(it.take())
    assert struct.unpack_from(">II", found[3]) == (1, ErrorCode.NO_ERROR)
    assert it.receive(client.request(3) + frames.window_update(3, 5)) == []
    assert it.receive(frames.reset(3, ErrorCode.CANCEL)) == []
    assert not it.closed
    it.respond(1, HEAD, b"answer", TRAILERS)
    assert answer(client, it)[1] == b"answer"
    assert it.streams == 0


def test_calls_that_do_not_arrive():
    """A request that has begun before a time and not ended is found."""
    it, client = opened()
    it.receive(client.headers(1) + client.request(3))
    it.at(2.0)
    it.receive(client.headers(5))
    assert it.incoming.late(1.0) == [1]


@given(st.binary(max_size=400))
def test_any_bytes_are_borne(data):
    """Nothing that a client sends raises."""
    it, client = opened()
    it.receive(data)
    it.receive(client.request(2**31 - 1))
    it.take()


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255]),
        st.integers(0, 7),
        st.one_of(st.binary(max_size=12), st.just(b"\x83\x86\x84")),
    ),
    max_size=30,
)


@given(FRAMES, st.booleans())
def test_any_frames_are_borne(sent, answered):
    """Whatever frames come in whatever order, every request comes out once, and nothing raises."""
    it, _ = opened()
    seen = set()
    for kind, flags, stream, payload in sent:
        for event in it.receive(frames.frame(kind, flags, stream, payload)):
            if isinstance(event, RequestReady):
                assert event.stream not in seen
                seen.add(event.stream)
                if answered:
                    it.respond(event.stream, HEAD, b"x" * 100, TRAILERS)
            elif isinstance(event, StreamReset):
                assert event.stream in seen
    assert it.incoming.held_bytes >= 0
    it.take()


def test_an_answer_that_is_not_taken_is_given_up():
    """Its stream is reset, and what it held is let go; one whose client takes a little goes on."""
    it, client = opened(SMALL_WINDOW)
    it.receive(client.request(1) + client.request(3))
    for stream in (1, 3):
        it.respond(stream, HEAD, bytes(100_000), TRAILERS)
    client.read(it.take())
    for now_s in (0, 10, 20, 29):
        it.receive(frames.window_update(3, 5000))
        assert it.give_up(now_s) == []
    it.take()
    assert it.give_up(31) == [1]
    assert client.read(it.take()) == [
        (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.ENHANCE_YOUR_CALM))
    ]
    assert it.streams == 1
    assert it.give_up(100) == [3]
    assert it.streams == 0
    it.receive(client.request(5))
    it.respond(5, HEAD, b"short", TRAILERS)
    assert it.streams == 0


def test_who_waits_for_others_is_not_given_up():
    """The connection's window goes to one answer after the other: the last waits long, while all is well."""
    it, client = opened({Setting.INITIAL_WINDOW_SIZE: 2**20})
    it.receive(client.request(1) + client.request(3))
    for stream in (1, 3):
        it.respond(stream, HEAD, bytes(300_000), TRAILERS)
    for now_s in range(0, 100, 10):
        it.receive(frames.window_update(0, 5000))
        assert it.give_up(now_s) == []
    assert it.give_up(200) == [1, 3], "but when the connection's window does not grow, all are"


def test_windows_that_move_without_bytes_are_no_progress():
    """A client may change the size of all windows as often as it likes."""
    it, client = opened(SMALL_WINDOW)
    it.receive(client.request(1))
    it.respond(1, HEAD, bytes(100_000), TRAILERS)
    it.receive(frames.window_update(1, 80_000))  # now it waits for the connection's
    for now_s in range(0, 30, 2):
        size = 0 if now_s % 4 else 1000
        it.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: size}))
        assert it.give_up(now_s) == []
    it.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    assert it.give_up(31) == [1]


def test_answers_that_wait_are_bounded():
    """Beside one of any size; another one is refused, and can still be told in short."""
    it, client = opened({Setting.INITIAL_WINDOW_SIZE: 0})
    it.receive(client.request(1) + client.request(3) + client.request(5))
    it.respond(1, HEAD, bytes(BUFFERED_BYTES), TRAILERS)
    with pytest.raises(SendBufferFull):
        it.respond(3, HEAD, b"more", TRAILERS)
    it.respond_short(3, HEAD)
    it.receive(frames.frame(FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.CANCEL)))
    it.respond(5, HEAD, b"more", TRAILERS)
    assert it.streams == 1


def head(*more, without=b""):
    """The fields of a call with others behind them, and without one."""
    return [*[pair for pair in CALL if pair[0] != without], *more]


MALFORMED = {
    "no method": head(without=b":method"),
    "no scheme": head(without=b":scheme"),
    "no path": head(without=b":path"),
    "an empty path": [(b":path", b""), *head(without=b":path")],
    "the method twice": [(b":method", b"POST"), *CALL],
    "the scheme twice": [(b":scheme", b"http"), *CALL],
    "the path twice": [(b":path", b"/"), *CALL],
    "the authority twice": [(b":authority", b"a"), *CALL],
    "a pseudo field behind others": [*CALL[1:], CALL[0]],
    "an unknown pseudo field": [(b":secret", b"a"), *CALL],
    "a status": [(b":status", b"200"), *CALL],
    "CONNECT with a path": [(b":method", b"CONNECT"), *head(without=b":method")],
    "CONNECT of nothing": [(b":method", b"CONNECT"), *CALL[4:]],
    "large letters": head((b"X-A", b"b")),
    "connection": head((b"connection", b"close")),
    "keep-alive": head((b"keep-alive", b"timeout=5")),
    "proxy-connection": head((b"proxy-connection", b"close")),
    "transfer-encoding": head((b"transfer-encoding", b"chunked")),
    "upgrade": head((b"upgrade", b"h2c")),
    "te of something else": head((b"te", b"gzip"), without=b"te"),
    "an empty name": head((b"", b"a")),
    "blank in a name": head((b"a b", b"c")),
    "colon in a name": head((b"a:b", b"c")),
    "LF in a name": head((b"a\nb", b"c")),
    "NUL in a name": head((b"a\0", b"c")),
    "a letter beyond ASCII": head(("ä".encode(), b"c")),
    "NUL in a value": head((b"a", b"b\0c")),
    "CR in a value": head((b"a", b"b\rc")),
    "LF in a value": head((b"a", b"b\nc")),
    "LF at the end of a value": head((b"a", b"b\n")),
    "blank before a value": head((b"a", b" b")),
    "blank behind a value": head((b"a", b"b\t")),
    "CR in the path": [(b":path", b"/a\r\nb: c"), *head(without=b":path")],
    "a length that is none": head((b"content-length", b"x")),
    "a length with a sign": head((b"content-length", b"+5")),
    "two lengths": head((b"content-length", b"5"), (b"content-length", b"6")),
}


@pytest.mark.parametrize("pairs", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_head_resets_its_stream(pairs):
    """RFC 9113, section 8.1.1: such a request is not served, also when it comes again; the others are."""
    it, client = opened()
    for stream in (1, 3, 5):
        assert it.receive(client.request(stream, pairs=pairs)) == []
        assert client.read(it.take()) == [
            (FrameType.RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))
        ]
    assert it.streams == 0
    (event,) = it.receive(client.request(7))
    assert event.fields.pairs == tuple(CALL)


@pytest.mark.parametrize(
    "pairs",
    [
        CALL[:3] + CALL[4:],
        [(b":method", b"CONNECT"), (b":authority", b"localhost")],
        head((b"te", b"Trailers"), without=b"te"),
        head((b"x-empty", b""), (b"x-text", "ä, b".encode()), (b"x-._-bin", b"a=")),
        head((b"cookie", b"a=b"), (b"cookie", b"c=d")),
        [(b":path", b"*"), (b":method", b"OPTIONS"), (b":scheme", b"https")],
        head((b"content-length", b"4")),
    ],
)
def test_a_head_that_is_rare_but_right_is_read(pairs):
    """What real clients may send comes out as it is."""
    it, client = opened()
    (event,) = it.receive(client.request(1, b"body", pairs=pairs))
    assert event.fields.pairs == tuple(pairs)


@pytest.mark.skipif(
    serving.form() == "compiled", reason="counts calls that a compiled module makes directly"
)
def test_a_head_that_is_known_is_not_checked_again(monkeypatch):
    """Only blocks that were never seen cost a check."""
    checked = []
    whole = fields._is_request
    monkeypatch.setattr(fields, "_is_request", lambda pairs: checked.append(1) or whole(pairs))
    it, client = opened()
    for number in range(10):
        assert len(it.receive(client.request(2 * number + 1))) == 1
    assert len(checked) == 2  # the first one changes the client's table


LENGTHS = st.sampled_from(["exact", "less", "more"])


@given(st.lists(st.binary(max_size=50), max_size=5), LENGTHS, st.booleans(), st.booleans())
def test_a_length_that_is_told_is_that_of_the_body(pieces, told, padded, trailers):
    """Whatever pieces it comes in, with padding and trailers or without: else the request is reset."""
    body = b"".join(pieces)
    length = max(0, len(body) + {"exact": 0, "less": -1, "more": 1}[told])
    it, client = opened()
    end = frames.END_HEADERS | frames.END_STREAM
    flags = frames.END_HEADERS if pieces or trailers else end
    sent = client.headers(1, head((b"content-length", b"%d" % length)), flags=flags)
    for place, piece in enumerate(pieces):
        flags = 0 if trailers or place < len(pieces) - 1 else frames.END_STREAM
        payload = b"\x03" + piece + bytes(3) if padded else piece
        sent += frames.frame(FrameType.DATA, flags | (frames.PADDED if padded else 0), 1, payload)
    if trailers:
        sent += client.headers(1, [(b"x", b"y")], flags=end)
    found = it.receive(sent)
    if length == len(body):
        assert [event.body for event in found] == [body]
    else:
        assert found == []
        assert client.read(it.take()) == [
            (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))
        ]
        assert it.streams == 0
    assert it.incoming.held_bytes == 0


@pytest.mark.parametrize(
    ("pairs", "flags"),
    [
        ([(b"x", b"y")], frames.END_HEADERS),
        ([(b":path", b"/")], frames.END_HEADERS | frames.END_STREAM),
        ([(b":status", b"200"), (b"x", b"y")], frames.END_HEADERS | frames.END_STREAM),
        ([(b"X", b"y")], frames.END_HEADERS | frames.END_STREAM),
        ([(b"connection", b"close")], frames.END_HEADERS | frames.END_STREAM),
    ],
    ids=["no end", "pseudo", "status", "large letters", "connection"],
)
@pytest.mark.parametrize("as_series", [False, True])
def test_malformed_trailers_reset_their_stream(pairs, flags, as_series):
    """The request is not served; of a series, of which its owner knows, it is gone."""
    client, it = Client(), Turned(Session(max_body_bytes=1000, opens=lambda _: as_series))
    it.receive(client.hello() + client.headers(1) + client.data(1, b"body", end=False))
    it.take()
    assert it.receive(client.headers(1, pairs, flags=flags)) == (
        [StreamReset(1)] if as_series else []
    )
    assert client.read(it.take()) == [
        (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))
    ]
    assert not it.closed


def test_late_trailers_are_borne():
    """A client that was answered before its end has sent them when it learns of that; a head is something else."""
    it, client = opened()
    it.receive(client.headers(1) + client.data(1, b"part", end=False))
    it.respond_short(1, HEAD)
    client.read(it.take())
    end = frames.END_HEADERS | frames.END_STREAM
    assert it.receive(client.data(1, b"more", end=False)) == []
    assert it.receive(client.headers(1, [(b"x", b"y")], flags=end)) == []
    assert it.take() == []
    it.receive(client.headers(1))
    assert goaway_code(client.read(it.take())) == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("stream", [1, 3])
def test_a_stream_is_not_opened_again(stream):
    """Neither one that is over nor one that was passed over: the client counts wrongly."""
    it, client = opened()
    it.receive(client.request(5))
    it.receive(client.request(stream))
    assert goaway_code(client.read(it.take())) == ErrorCode.STREAM_CLOSED


def test_a_head_behind_the_end_of_its_stream():
    """While the request waits for its answer: the stream is reset, and the call is gone."""
    it, client = opened()
    it.receive(client.request(1))
    assert it.receive(client.headers(1)) == [StreamReset(1)]
    assert client.read(it.take()) == [
        (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.STREAM_CLOSED))
    ]


def test_a_window_that_grows_by_nothing_resets_its_stream():
    """RFC 9113, section 6.9: PROTOCOL_ERROR."""
    it, client = opened()
    it.receive(client.request(1))
    assert it.receive(frames.window_update(1, 0)) == [StreamReset(1)]
    assert client.read(it.take()) == [
        (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))
    ]
