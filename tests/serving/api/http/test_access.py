"""Who may ask: tokens, origins of pages, and the trace of a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.http.access import Access, Token
from serving.api.http.messages import RequestHead
from serving.api.transport.trusted_hosts import TrustedHosts

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def head(method="GET", path="/v2", **others):
    return RequestHead(
        method=method,
        path=path,
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


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        (b"localhost", True),
        (b"LocalHost:8000", True),
        (b"localhost.", True),
        (b"127.0.0.1:1", True),
        (b"127.3.2.1", True),
        (b"[::1]", True),
        (b"[::1]:8000", True),
        (b"[::ffff:127.0.0.1]:8000", True),
        (b"models.example:443", True),
        (b"10.0.0.7", True),
        (b"evil.example", False),
        (b"evil.example:8000", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"10.0.0.8", False),
        (b"0.0.0.0:8000", False),
        (b"[::2]", False),
        (b"2130706433", False),
        (b"127.0.0.1:8000.evil.example", False),
        (b"[::1].evil.example", False),
        (b"[::1]evil.example:80", False),
        (b"localhost:80:80", False),
        (b"", False),
    ],
)
def test_names_of_the_port(host, is_allowed):
    """Those of this machine for itself and those that are given; whoever asks for health may use any."""
    access = Access(hosts=TrustedHosts({"models.example", "10.0.0.7"}))
    refusal = access.refusal(head(host=host))
    assert (refusal is None) is is_allowed
    assert access.refusal(head(path="/v2/health/live", host=host)) is None
    assert access.refusal(head()) is None, "only old programs send no Host, no browser does"
    assert Access().refusal(head(host=host)) is None
    if refusal is not None:
        assert refusal.status == 403
        assert b"server.hosts" in refusal.body


def test_a_name_comes_before_the_rules_and_the_token():
    """A page that claims to be this machine learns neither."""
    access = Access(token=Token(b"secret"), origins=["*"], hosts=TrustedHosts())
    question = {"access_control_request_method": b"POST", "origin": b"https://a.example"}
    assert access.refusal(head("OPTIONS", host=b"evil.example", **question)).status == 403
    assert access.refusal(head(host=b"evil.example", authorization=b"Bearer secret")).status == 403


CHANGES = [
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload/",
    "/app/update",
    "/app/update/?x=1",
]


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ({}, True),
        ({"origin": b"http://localhost:8000"}, True),
        ({"origin": b"https://a.example"}, True),
        ({"origin": b"https://a.example", "sec_fetch_site": b"cross-site"}, True),
        ({"origin": b"http://localhost:3000"}, False),
        ({"origin": b"http://evil.example"}, False),
        ({"origin": b"null"}, False),
        ({"sec_fetch_site": b"same-origin", "origin": b"http://proxied.example"}, True),
        ({"sec_fetch_site": b"none"}, True),
        ({"sec_fetch_site": b"cross-site"}, False),
        ({"sec_fetch_site": b"same-site", "origin": b"http://localhost:3000"}, False),
    ],
)
def test_pages_of_other_origins_change_nothing(path, fields, is_allowed):
    """Models and what policies have learnt are changed by programs, and by pages that are named."""
    access = Access(origins=["https://a.example"])
    asked = head("POST", path, host=b"localhost:8000", **fields)
    refusal = access.refusal(asked)
    assert (refusal is None) is is_allowed
    if refusal is not None:
        assert refusal.status == 403
        assert b"server.cors" in refusal.body
    for other in ("/v2/models/m/infer", "/app/predict", "/v1/models/update:predict"):
        assert access.refusal(head("POST", other, host=b"localhost:8000", **fields)) is None
