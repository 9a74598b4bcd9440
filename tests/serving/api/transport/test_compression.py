"""Compressed bodies: back and forth, and what is refused."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.transport.compression import accepted_encoding, compress, decompress
from serving.errors import BodyTooLarge, InvalidRequest


def raw(data):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@given(st.binary(max_size=300))
def test_round_trips(data):
    """What was compressed comes back, in each encoding and both meanings of deflate."""
    for encoding in ("gzip", "deflate"):
        assert decompress(encoding, compress(encoding, data), 300) == data
    assert decompress("x-gzip", gzip.compress(data, mtime=0), 300) == data
    assert decompress("deflate", zlib.compress(data), 300) == data
    assert decompress("deflate", raw(data), 300) == data


@given(st.sampled_from(["gzip", "deflate"]), st.binary(max_size=60))
def test_any_bytes(encoding, data):
    """Bytes of a stranger are decompressed or refused."""
    try:
        decompress(encoding, data, 100)
    except InvalidRequest as error:
        assert error.status in {400, 413}  # noqa: PT017


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, raw])
def test_a_bomb_is_not_unpacked(compress):
    """It is over at the limit, however much there would be."""
    bomb = compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    with pytest.raises(BodyTooLarge):
        decompress("gzip" if compress is gzip.compress else "deflate", bomb, 1000)
    assert decompress("gzip", gzip.compress(bytes(1000)), 1000) == bytes(1000)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b""),
        ("gzip", b"{}"),
        ("gzip", gzip.compress(b"abc", mtime=0)[:-1]),
        ("gzip", gzip.compress(b"abc", mtime=0) + b"x"),
        ("gzip", gzip.compress(b"abc", mtime=0) * 2),
        ("gzip", zlib.compress(b"abc")),
        ("deflate", b""),
        ("deflate", gzip.compress(b"abc", mtime=0)),
        ("deflate", zlib.compress(b"abc")[:-1]),
    ],
)
def test_what_is_no_whole_stream(encoding, body):
    """400, with the encoding."""
    with pytest.raises(InvalidRequest, match=encoding):
        decompress(encoding, body, 1000)


@pytest.mark.parametrize(
    ("field", "encoding"),
    [
        (b"gzip", "gzip"),
        (b"deflate, GZIP;q=0.5, br", "gzip"),
        (b"gzip;q=1.0", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip;q=0, deflate;q=0.1", "deflate"),
        (b"gzip; q=0", None),
        (b"gzip;q=0.000", None),
        (b"x-gzip", None),
        (b"identity", None),
        (b"*", None),
        (b"", None),
    ],
)
def test_what_a_client_accepts(field, encoding):
    """Only by name, and not where it says that it does not."""
    assert accepted_encoding(field) == encoding


def test_the_error_keeps_nothing_of_what_became_too_large():
    """Whoever has it may keep it for long."""
    with pytest.raises(BodyTooLarge) as refused:
        decompress("gzip", gzip.compress(bytes(1 << 20)), 1 << 16)
    frames = [entry.frame.f_locals for entry in refused.traceback[1:]]
    assert not [value for held in frames for value in held.values() if len(repr(value)) > 5000]
