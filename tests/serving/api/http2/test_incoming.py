"""Bodies that are a series of messages: cut out of the stream, held back, and answered by messages."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.api.http2 import fields, frames, incoming, session
from serving.api.http2.events import MessageReady, StreamOpened, StreamReset
from serving.api.http2.frames import ErrorCode, FrameType, Setting
from serving.api.http2.session import Session
from serving.errors import BodyTooLarge, InvalidRequest
from tests.fakes.http2_client import CALL, SMALL_WINDOW, Client, Turned

HEAD = fields.status(200)
TRAILERS = fields.literal(b"grpc-status", b"0")
MOST = 1 << 20


def opened(values=None, most=MOST, opens=lambda _: True):
    """A session that takes every body for a series, and its client, who has opened stream 1."""
    client, it = Client(), Turned(Session(max_body_bytes=most + 5, opens=opens))
    it.receive(client.hello(values))
    client.read(it.take())
    return it, client


def framed(*messages):
    return b"".join(b"\0" + struct.pack(">I", len(message)) + message for message in messages)


def taken(it, stream=1):
    """All messages that can be had now."""
    found = []
    while (message := it.message(stream)) is not None:
        found.append(message[5:])
    return found


def sent(client, it):
    """Data and kinds of frames that have come to the client on stream 1, and whether it has ended."""
    found = [frame for frame in client.read(it.take()) if frame[2] == 1]
    data = b"".join(payload for kind, _, _, payload in found if kind is FrameType.DATA)
    is_over = any(
        kind is FrameType.HEADERS and flags & frames.END_STREAM for kind, flags, _, _ in found
    )
    return data, is_over


@given(st.lists(st.binary(max_size=200), max_size=6), st.data())
def test_messages_come_out_whole(messages, data):
    """However the client cuts them into frames, and the network those into pieces."""
    it, client = opened()
    body = framed(*messages)
    whole = client.headers(1) + client.data(1, body, frame_bytes=data.draw(st.integers(1, 90)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    found, is_open = [], False
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        for event in it.receive(whole[start:stop]):
            is_open |= isinstance(event, StreamOpened)
            if isinstance(event, MessageReady):
                assert is_open
                found += taken(it)
    assert found == messages
    assert it.is_over(1)
    assert not it.waiting
    assert it.has_series


def upload(it, client, body, window):
    """Send as much of a body as the windows take: what is left of it, and of the window."""
    while body and window:
        size = min(len(body), window, frames.DEFAULT_FRAME_BYTES)
        it.receive(client.data(1, body[:size], end=False))
        body, window = body[size:], window - size
        for kind, _, on, payload in client.read(it.take()):
            if kind is FrameType.WINDOW_UPDATE and on == 1:
                window += struct.unpack(">I", payload)[0]
    return body, window


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 700_000), min_size=1, max_size=8))
def test_what_nobody_asks_for_is_held_back(sizes):
    """A window and one message beyond at most; all comes through when it is asked for."""
    it, client = opened()
    messages = [bytes([i]) * size for i, size in enumerate(sizes)]
    it.receive(client.headers(1))
    rest, window = upload(it, client, framed(*messages), session.WINDOW_BYTES)
    found = []
    while rest:
        assert it.incoming.held_bytes <= session.WINDOW_BYTES + max(sizes) + 5
        message = it.message(1)
        assert message is not None, "the client may not send, and there is nothing to ask for"
        found.append(message[5:])
        for kind, _, on, payload in client.read(it.take()):
            if kind is FrameType.WINDOW_UPDATE and on == 1:
                window += struct.unpack(">I", payload)[0]
        rest, window = upload(it, client, rest, window)
    assert found + taken(it) == messages
    assert it.incoming.held_bytes == 0


def test_a_series_that_nobody_asks_does_not_hold_up_a_body(monkeypatch):
    """It is not the first in line for room when it has a message that could be asked for."""
    monkeypatch.setattr(incoming, "BUDGET_BYTES", 0)
    it, client = opened(opens=lambda found: (b"x", b"series") in found.pairs)
    it.receive(client.headers(1, [*CALL, (b"x", b"series")]))
    half = session.WINDOW_BYTES // 2
    it.receive(client.data(1, framed(bytes(half)), end=False))
    it.receive(client.headers(3, [*CALL, (b"x", b"whole")]))
    client.read(it.take())
    it.receive(client.data(3, bytes(half), end=False))
    assert [on for kind, _, on, _ in client.read(it.take()) if kind is FrameType.WINDOW_UPDATE] == [
        3
    ]


def test_a_message_that_is_too_long():
    """It is told as soon as its length is known, and no more of it is let in."""
    it, client = opened(most=1000)
    it.receive(client.headers(1) + client.data(1, framed(b"ok", bytes(1001))[:12], end=False))
    assert it.message(1)[5:] == b"ok"
    with pytest.raises(BodyTooLarge, match=" 1000 bytes"):
        it.message(1)
    it.end(1, TRAILERS)
    assert it.streams == it.incoming.held_bytes == 0


@pytest.mark.parametrize("left", [b"\0", framed(b"abc")[:-1]])
def test_a_series_that_ends_within_a_message(left):
    """The messages before it are there."""
    it, client = opened()
    it.receive(client.headers(1) + client.data(1, framed(b"ok") + left))
    assert it.message(1)[5:] == b"ok"
    with pytest.raises(InvalidRequest, match="ends within a message"):
        it.message(1)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    st.integers(0, 3000),
    st.lists(st.integers(1, 30_000), max_size=12),
)
def test_messages_of_an_answer_keep_to_the_windows(sizes, window, updates):
    """They leave in order, as far as the client lets them; the end leaves behind them, and is told before."""
    it, client = opened({Setting.INITIAL_WINDOW_SIZE: window})
    it.receive(client.headers(1))
    it.begin(1, HEAD)
    messages = framed(*[bytes([i]) * size for i, size in enumerate(sizes)])
    for i, size in enumerate(sizes):
        it.send(1, framed(bytes([i]) * size))
    got, _ = sent(client, it)
    allowed = window
    assert it.outgoing.waits(1) == (len(got) < len(messages))
    for update in updates:
        allowed += update
        events = it.receive(frames.window_update(1, update) + frames.window_update(0, update))
        more, _ = sent(client, it)
        got += more
        assert len(got) <= allowed
        assert messages.startswith(got)
        if more:
            assert (MessageReady(1) in events) == (got == messages)
    it.end(1, TRAILERS)
    it.receive(frames.window_update(1, len(messages)) + frames.window_update(0, len(messages)))
    more, _ = sent(client, it)
    assert got + more == messages
    assert it.streams == 0


def test_an_end_before_the_clients():
    """The client is told to stop, and what it sends then is dropped."""
    it, client = opened()
    it.receive(client.headers(1))
    it.begin(1, HEAD)
    it.end(1, TRAILERS)
    kinds = [(kind, flags & frames.END_STREAM) for kind, flags, _, _ in client.read(it.take())]
    assert kinds == [(FrameType.HEADERS, 0), (FrameType.HEADERS, 1), (FrameType.RST_STREAM, 0)]
    assert it.receive(client.data(1, framed(b"late"))) == []
    assert not it.closed


def test_a_series_that_is_cancelled():
    """It is told, also when the client has ended its own side, and what is held of it is let go."""
    for is_ended in (False, True):
        it, client = opened()
        it.receive(client.headers(1) + client.data(1, framed(b"a", b"b"), end=is_ended))
        assert it.receive(frames.reset(1, ErrorCode.CANCEL)) == [StreamReset(1)]
        assert it.streams == it.incoming.held_bytes == 0
        assert it.message(1) is None
        it.send(1, framed(b"late"))
        it.end(1, TRAILERS)


def test_a_client_that_ends_its_series_with_fields():
    """Or at its head: there is no message, and it is over."""
    it, client = opened()
    it.receive(client.headers(1))
    end = frames.END_HEADERS | frames.END_STREAM
    assert it.receive(client.headers(1, [(b"x", b"y")], flags=end)) == [MessageReady(1)]
    assert it.is_over(1)
    assert [type(event) for event in it.receive(client.headers(3, flags=end))] == [
        StreamOpened,
        MessageReady,
    ]
    assert it.is_over(3)


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_refused_at_its_head(is_whole):
    """The answer is there before the body, which is dropped when it comes."""
    it, client = opened(opens=lambda _: HEAD)
    flags = frames.END_HEADERS | (frames.END_STREAM if is_whole else 0)
    assert it.receive(client.headers(1, flags=flags)) == []
    kinds = [kind for kind, *_ in client.read(it.take())]
    assert kinds == [FrameType.HEADERS] + [FrameType.RST_STREAM] * (not is_whole)
    if not is_whole:
        assert it.receive(client.data(1, b"body")) == []
    assert it.streams == 0
    assert not it.closed


def test_a_message_that_does_not_arrive():
    """A series may rest between its messages as long as it likes, and not within one."""
    it, client = opened()
    it.receive(client.headers(1) + client.data(1, framed(b"whole"), end=False))
    it.receive(client.headers(3) + client.data(3, b"\0\0", end=False))
    it.receive(client.headers(5))
    assert it.incoming.late(1.0) == [3]
    it.at(2.0)
    it.message(1)
    it.receive(client.data(1, b"\0", end=False) + client.data(3, framed(b"")[2:], end=False))
    assert it.incoming.late(1.0) == []
    assert it.incoming.late(3.0) == [1]


def test_an_answer_that_is_not_taken_is_given_up():
    """Its series is reset, and named."""
    it, client = opened(SMALL_WINDOW)
    it.receive(client.headers(1))
    it.begin(1, HEAD)
    it.send(1, bytes(100_000))
    assert it.give_up(0) == []
    assert it.give_up(31) == [1]
    assert it.streams == 0


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255]),
        st.integers(0, 7),
        st.one_of(st.binary(max_size=12), st.just(b"\x83\x86\x84"), st.just(framed(b"hello"))),
    ),
    max_size=30,
)


@given(FRAMES, st.sampled_from([True, HEAD]), st.booleans())
def test_any_frames_are_borne(given_frames, opens, answered):
    """Whatever frames come in whatever order: nothing raises but for what is no message."""
    it, _ = opened(opens=lambda _: opens)
    known = set()
    for kind, flags, stream, payload in given_frames:
        for event in it.receive(frames.frame(kind, flags, stream, payload)):
            if isinstance(event, StreamOpened):
                known.add(event.stream)
                it.begin(event.stream, HEAD)
                continue
            assert event.stream in known
            try:
                while isinstance(event, MessageReady) and (message := it.message(event.stream)):
                    it.send(event.stream, message)
                    if answered:
                        it.end(event.stream, TRAILERS)
            except InvalidRequest:
                it.end(event.stream, TRAILERS)
    assert it.incoming.held_bytes >= 0
    it.take()
