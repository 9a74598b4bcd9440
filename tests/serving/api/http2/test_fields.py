"""Header fields: blocks of clients are read as the RFC says, whatever was remembered; blocks of answers are plain."""

import contextlib

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.http2 import fields
from serving.api.http2.fields import FieldReader
from serving.api.http2.frames import Http2Error

NAMES = st.sampled_from([b":path", b"te", b"content-type", b"grpc-timeout", b"x-a", b"user-agent"])
VALUES = st.sampled_from(
    [b"", b"trailers", b"application/grpc", b"1S", b"99m", b"a" * 200, b"\xff"]
)
LISTS = st.lists(st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8), max_size=30)
"""Fields with whether they are spelled out each time, as a client does with what is secret or changes."""


@given(LISTS, st.randoms(use_true_random=False))
def test_blocks_mean_what_their_client_wrote(lists, random):
    """Each block of a connection gives its own fields, also when equal blocks were seen under another table."""
    encoder, reader = hpack.Encoder(), FieldReader()
    for pairs in lists:
        if random.random() < 0.1:
            encoder.header_table_size = random.choice([0, 64, 4096])
        expected = tuple([(name, value) for name, value, _ in pairs])
        for _ in range(random.randrange(1, 3)):
            block = encoder.encode(pairs, huffman=random.random() < 0.5)
            assert reader.read(block).pairs == expected


def test_a_repeated_block_is_the_same_object():
    """A client's repeated block is decoded once, and what its fields mean stays with them."""
    encoder, reader = hpack.Encoder(), FieldReader()
    pairs = [(b":method", b"POST"), (b"te", b"trailers"), (b"grpc-timeout", b"1S" * 99, True)]
    reader.read(encoder.encode(pairs))
    first = reader.read(encoder.encode(pairs))
    first.meaning = "kept"
    assert reader.read(encoder.encode(pairs)).meaning == "kept"


def test_a_change_of_the_table_forgets_what_was_remembered():
    """The same bytes mean other fields after the table has moved."""
    reader = FieldReader()
    reader.read(b"\x40\x01a\x01b")
    assert reader.read(b"\xbe").pairs == ((b"a", b"b"),)
    reader.read(b"\x40\x01c\x01d")
    assert reader.read(b"\xbe").pairs == ((b"c", b"d"),)


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_refused(block):
    """No block breaks the reader in another way than by being refused."""
    with contextlib.suppress(Http2Error):
        FieldReader().read(block)


def test_a_list_above_the_limit_is_refused():
    """A small block that names a large field again and again is refused by what it expands to."""
    reader = FieldReader()
    reader.read(b"\x40\x01a\x7f\x81\x17" + b"b" * 3072)
    with pytest.raises(Http2Error):
        reader.read(b"\xbe" * 100)


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=300))
def test_fields_of_answers_are_readable(name, value):
    """What is written by hand is what any HPACK decoder reads."""
    block = fields.status(200) + fields.literal(name, value) + fields.status(415)
    assert hpack.Decoder().decode(block, raw=True) == [
        (b":status", b"200"),
        (name, value),
        (b":status", b"415"),
    ]


@pytest.mark.parametrize("count", [10, 1000, 16_000])
@pytest.mark.parametrize(
    ("begin", "middle", "end"),
    [
        (b"\xff", b"\xff", b"\x00"),
        (b"\xff", b"\x81", b"\x00"),
        (b"\xff", b"\x80", b"\x00"),
        (b"\x00\x7f", b"\xff", b"\x01"),
        (b"\x3f", b"\xff", b"\x01"),
    ],
    ids=["index", "index of ones", "index of zeros", "length", "size of the table"],
)
def test_an_integer_without_bounds_is_refused(begin, middle, end, count):
    """As hpack does from 4.2 on: before, a ValueError left the session, and long ones took milliseconds."""
    with pytest.raises(Http2Error):
        FieldReader().read(begin + middle * count + end)
