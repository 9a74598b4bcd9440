"""The stream of messages: any pieces give the same messages, garbage is refused, lengths are checked."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.wire.stream import message

KINDS = st.sampled_from(list(wire.MessageType))
MESSAGES = st.lists(st.tuples(KINDS, st.binary(max_size=30)), max_size=6)


def _stream(messages):
    return b"".join(message(kind, body) for kind, body in messages)


def _fed(parser, pieces):
    return [(kind, bytes(body)) for piece in pieces for kind, body in parser.feed(piece)]


@given(MESSAGES, st.lists(st.integers(0, 400)))
def test_pieces_do_not_matter(messages, cuts):
    """However a stream is cut, its messages come out whole, in order, and once."""
    stream = _stream(messages)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert _fed(wire.MessageParser(), pieces) == messages


def test_split_at_every_byte():
    """Two messages cut in two anywhere, and byte by byte, come out the same."""
    messages = [(wire.MessageType.HELLO, b"{}"), (wire.MessageType.RESULT, b"0123456789")]
    stream = _stream(messages)
    for cut in range(len(stream) + 1):
        assert _fed(wire.MessageParser(), [stream[:cut], stream[cut:]]) == messages
    assert _fed(wire.MessageParser(), [stream[i : i + 1] for i in range(len(stream))]) == messages


@given(MESSAGES)
def test_reading_what_is_missing_never_reads_too_far(messages):
    """Who reads `missing_bytes` at a time gets each message alone and leaves the next untouched."""
    stream = _stream(messages)
    parser = wire.MessageParser()
    position = 0
    read = []
    while position < len(stream):
        size = parser.missing_bytes
        assert size > 0
        got = parser.feed(stream[position : position + size])
        position += size
        assert len(got) <= 1
        read += [(kind, bytes(body)) for kind, body in got]
    assert read == messages
    assert position == len(stream)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_is_refused_or_waited_on(pieces):
    """Bytes that are no messages raise WireError or are held; they are never yielded twice."""
    parser = wire.MessageParser(max_message_bytes=64)
    total = sum(map(len, pieces))
    try:
        got = [body for piece in pieces for _, body in parser.feed(piece)]
    except wire.WireError:
        return
    assert sum(len(body) + wire.HEAD.size for body in got) <= total


def test_a_whole_message_is_not_copied():
    """The body of a message that came in one piece is a view of the piece."""
    stream = _stream([(wire.MessageType.INFER, bytes(1000))])
    ((_, body),) = wire.MessageParser().feed(stream)
    assert body.obj is stream


def test_a_long_message_is_joined_once():
    """A message in many pieces costs its own size, not the square of it."""
    size = 4_000_000
    stream = _stream([(wire.MessageType.RESULT, bytes(size))])
    pieces = [stream[i : i + 1000] for i in range(0, len(stream), 1000)]
    parser = wire.MessageParser()
    tracemalloc.start()
    got = _fed(parser, pieces)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(got[0][1]) == size
    assert peak < 4 * size


@pytest.mark.parametrize(
    ("phrase", "head", "text"),
    [
        ("another protocol", b"GET / HT", "starts with b'GE'"),
        ("a later version", wire.HEAD.pack(b"LW", 2, 1, 0), "version 2"),
        ("an unknown type", wire.HEAD.pack(b"LW", 1, 99, 0), "type 99"),
        ("too long a message", wire.HEAD.pack(b"LW", 1, 7, 1001), "RESULT .* 1001 bytes"),
        ("the longest length", wire.HEAD.pack(b"LW", 1, 7, 2**32 - 1), "limit of 1000"),
    ],
)
def test_wrong_heads_are_refused(phrase, head, text):
    """A wrong head is refused as soon as it is whole, before anything is kept for its body."""
    parser = wire.MessageParser(max_message_bytes=1000)
    assert parser.feed(head[:7]) == []
    with pytest.raises(wire.WireError, match=text):
        parser.feed(head[7:])


def test_the_limit_itself_passes():
    """A body of exactly the limit is a message."""
    stream = _stream([(wire.MessageType.INFER, bytes(1000))])
    assert len(wire.MessageParser(max_message_bytes=1000).feed(stream)) == 1
