"""Who may ask: tokens, origins of pages, and the trace of a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.protocol.access import Access, Token
from serving.protocol.http_messages import Head

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def head(method="GET", path="/v2", **others):
    return Head(
        method=method,
        path=path,
        content_length=None,
        inference_header_bytes=None,
        content_encoding="",
        keep_alive=True,
        http_1_0=False,
        others={name.replace("_", "-").encode(): value for name, value in others.items()},
    )


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        (b"Bearer secret", True),
        (b"bearer   secret ", True),
        (b"Bearer secre", False),
        (b"Bearer secrets", False),
        (b"Bearer Secret", False),
        (b"Basic secret", False),
        (b"secret", False),
        (b"Bearer", False),
        (b"", False),
    ],
)
def test_tokens(field, allowed):
    """The token and nothing else, whatever the case of its scheme."""
    assert Token(b"secret").allows(field) is allowed


@given(st.binary(max_size=20))
def test_any_field_but_the_token_is_refused(data):
    """Bytes of a stranger are compared, never trusted."""
    assert not Token(b"a-token-that-nobody-guesses").allows(data)


@pytest.mark.parametrize(
    ("path", "is_open"),
    [
        ("/v2/health/live", True),
        ("/v2/health/ready?x=1", True),
        ("/v2/health/ready/", False),
        ("/v2", False),
        ("/monitoring/prometheus/metrics", False),
        ("/v2/models/m/infer", False),
    ],
)
def test_health_is_open(path, is_open):
    """All else needs the token, and the refusal says how to bring it."""
    access = Access(token=Token(b"secret"))
    refusal = access.refusal(head(path=path))
    assert (refusal is None) is is_open
    assert access.refusal(head(path=path, authorization=b"Bearer secret")) is None
    if refusal is not None:
        assert refusal.status == 401
        assert b"WWW-Authenticate: Bearer\r\n" in refusal.fields


def test_pages_of_other_origins():
    """Those that are named may read answers; others get no field that says so."""
    access = Access(origins=["https://a.example"])
    fields = access.fields(head(origin=b"https://a.example"))
    assert b"Access-Control-Allow-Origin: https://a.example\r\nVary: Origin\r\n" in fields
    assert access.fields(head(origin=b"https://b.example")) == b""
    assert access.fields(head(origin=b"*")) == b""
    assert access.fields(head()) == b""
    assert b"Origin: *\r\n" in Access(origins=["*"]).fields(head(origin=b"https://b.example"))


def test_a_browser_asks_before_the_request():
    """It gets the rules without a token, which it does not send with this question."""
    access = Access(token=Token(b"secret"), origins=["https://a.example"])
    question = {"access_control_request_method": b"POST", "origin": b"https://a.example"}
    answer = access.refusal(head("OPTIONS", **question))
    assert answer.status == 200
    assert b"Access-Control-Allow-Methods: GET, POST\r\n" in answer.fields
    assert b"X-Application" in answer.fields
    assert b"Authorization" in answer.fields
    assert access.refusal(head("OPTIONS", **question | {"origin": b"https://b"})).status == 401
    refused = access.refusal(head("POST", origin=b"https://a.example"))
    assert b"Access-Control-Allow-Origin: https://a.example" in refused.fields


@pytest.mark.parametrize(
    ("trace", "echoed"),
    [(TRACE, True), (TRACE + b"-x", True), (TRACE.upper(), False), (b"00-0-0-01", False), (b"", False)],
)  # fmt: skip
def test_traces(trace, echoed):
    """A trace that is well-formed comes back with the answer."""
    expected = b"traceparent: %b\r\n" % trace if echoed else b""
    assert Access().fields(head(traceparent=trace)) == expected
