"""gRPC calls over HTTP/2: fields, framing, status."""

import urllib.parse

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.grpc import calls
from serving.api.grpc.calls import Code, GrpcCall
from serving.errors import (
    BodyTooLarge,
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServingError,
    UnknownModel,
)
from tests.fakes.http2_client import CALL


def fields_of(block):
    return dict(hpack.Decoder().decode(block, raw=True))


def with_fields(**more):
    changed = {name.replace("_", "-").encode(): value for name, value in more.items()}
    return tuple((dict(CALL) | changed).items())


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"250m", 0.25), (b"5u", 5e-6), (b"7n", 7e-9),
     (b"0m", 0), (b"99999999H", 86_400)],
)  # fmt: skip
def test_timeouts(timeout, seconds):
    """All units are read; more than a day is a day."""
    call = calls.call_of(with_fields(grpc_timeout=timeout))
    assert call == GrpcCall("inference.GRPCInferenceService", "ModelInfer", pytest.approx(seconds))


def test_whose_call_it_is():
    """The metadata x-application; without it nobody's."""
    assert calls.call_of(with_fields(x_application=b"digits")).application == "digits"
    assert calls.call_of(with_fields()).application == ""


@pytest.mark.parametrize("timeout", [b"", b"1", b"S", b"-1S", b"1.5S", b"123456789S", b"1s"])
def test_what_is_no_timeout(timeout):
    """It is refused with what was given."""
    found = fields_of(calls.call_of(with_fields(grpc_timeout=timeout)))
    assert found[b"grpc-status"] == b"3"


@pytest.mark.parametrize(
    "kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y"]
)
def test_content_types_of_calls(kind):
    """gRPC with protobuf, however it is spelled."""
    assert isinstance(calls.call_of(with_fields(content_type=kind)), GrpcCall)


def test_what_is_no_call():
    """Other methods and content types get a status of HTTP, as the specification asks."""
    assert fields_of(calls.call_of(with_fields(content_type=b"text/html")))[b":status"] == b"415"
    assert fields_of(calls.call_of(((b":method", b"GET"),)))[b":status"] == b"405"


def test_compression_that_is_not_known():
    """It is refused with what can be sent instead."""
    found = fields_of(calls.call_of(with_fields(grpc_encoding=b"snappy")))
    assert found[b"grpc-status"] == b"12"
    assert found[b"grpc-accept-encoding"] == b"identity,gzip,deflate"


@pytest.mark.parametrize(
    ("encoding", "accepts", "found"),
    [
        (b"gzip", b"identity,deflate,gzip", ("gzip", "gzip")),
        (b"deflate", b"identity, deflate, gzip", ("deflate", "deflate")),
        (b"gzip", b"identity,deflate", ("gzip", None)),
        (b"gzip", b"", ("gzip", None)),
        (b"identity", b"identity,deflate,gzip", (None, None)),
    ],
)
def test_compression(encoding, accepts, found):
    """Answers are compressed as the request is, where the client takes that."""
    given = with_fields(grpc_encoding=encoding, grpc_accept_encoding=accepts)
    call = calls.call_of(given)
    assert (call.encoding, call.response_encoding) == found


def test_the_message_of_a_body():
    """Five bytes before it say whether it is compressed, and how long it is."""
    assert calls.message_of(calls.prefix(3) + b"abc") == b"abc"
    compressed = calls.prefix(3, is_compressed=True) + b"abc"
    assert calls.message_of(compressed, is_compressed=True) == b"abc"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INVALID_ARGUMENT),
        (b"\0\0\0\0", Code.INVALID_ARGUMENT),
        (b"\0\0\0\0\x04abc", Code.INVALID_ARGUMENT),
        (b"\0\0\0\0\x03abc\0\0\0\0\0", Code.UNIMPLEMENTED),
        (b"\1\0\0\0\x03abc", Code.INTERNAL),
    ],
)
def test_bodies_that_are_not_one_message(body, code):
    """None, a part of one, two, and one that is compressed in a way that nobody told are refused."""
    with pytest.raises(ServingError) as refused:
        calls.message_of(body)
    assert calls.OF_HTTP.get(refused.value.status, Code.INTERNAL) is code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), Code.INVALID_ARGUMENT),
        (UnknownModel("x", ()), Code.NOT_FOUND),
        (BodyTooLarge(1), Code.RESOURCE_EXHAUSTED),
        (Overloaded(1, 1.0), Code.RESOURCE_EXHAUSTED),
        (CannotFinish(1.0), Code.RESOURCE_EXHAUSTED),
        (CannotLoad(1.0), Code.RESOURCE_EXHAUSTED),
        (NotReady("x"), Code.UNAVAILABLE),
        (DeadlineExceeded(), Code.DEADLINE_EXCEEDED),
        (InferenceFailed("x"), Code.INTERNAL),
    ],
)
def test_errors_have_codes(error, code):
    """Each error is answered with the code that says the same as its status."""
    found = fields_of(calls.error_block(error))
    assert found[b":status"] == b"200"
    assert int(found[b"grpc-status"]) == code
    assert urllib.parse.unquote(found[b"grpc-message"].decode()) == str(error)


@pytest.mark.parametrize("error", [Overloaded(1, 0.5), CannotFinish(0.5)])
def test_overload_says_when_to_come_again(error):
    """Milliseconds until a client that retries should."""
    found = fields_of(calls.error_block(error))
    assert found[b"grpc-retry-pushback-ms"] == b"500"


@given(st.text(max_size=1500))
def test_texts_of_errors_come_back(text):
    """Any text is printable ASCII on the wire, and the same again after it; long ones are cut."""
    encoded = fields_of(calls.refusal(Code.INTERNAL, text))[b"grpc-message"]
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    decoded = urllib.parse.unquote(encoded.decode(), errors="replace")
    wanted = text.encode("utf-8", "replace").decode()
    assert decoded == (wanted if len(text) <= 1000 else wanted[:999] + "…")


@pytest.mark.parametrize(
    "name",
    [b":method", b":path", b"authorization", b"content-type", b"grpc-encoding", b"grpc-timeout", b"x-application"],
)  # fmt: skip
def test_a_field_that_comes_twice(name):
    """Nobody knows which one is meant, so that none is; fields that mean nothing here may come as they like."""
    first = dict(CALL).get(name, b"1S")
    found = calls.call_of((*CALL, (name, first), (name, b"other")))
    fields = fields_of(found)
    assert fields[b"grpc-status"] == b"3"
    assert name.decode() in urllib.parse.unquote(fields[b"grpc-message"].decode())
    assert isinstance(calls.call_of((*CALL, (b"x-trace", b"a"), (b"x-trace", b"b"))), GrpcCall)
