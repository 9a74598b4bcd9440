"""URLs and headers from the command line."""

import pytest

from tuner.errors import UsageError
from tuner.load_generator.endpoint import parse_header, parse_url


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8000/v2/models/m/infer", "127.0.0.1", 8000, "/v2/models/m/infer"),
        ("localhost:8080", "localhost", 8080, "/"),
        ("http://example.org", "example.org", 80, "/"),
        ("http://[::1]:8000/x?a=1&b=%20#part", "::1", 8000, "/x?a=1&b=%20"),
        ("http://h/a b", "h", 80, "/a%20b"),
    ],
)
def test_a_url_is_taken_apart(url, host, port, path):
    """Host, port and the path of the request line; http and port 80 where nothing else is said."""
    target = parse_url(url)
    assert (target.host, target.port, target.path) == (host, port, path)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://h/x", "https is not supported"),
        ("ftp://h/x", "expected http"),
        ("http:///x", "expected http"),
        ("http://h:seven/", "Port could not be cast"),
        ("http://h:99999/", "Port out of range"),
        ("http://me:secret@h/", "--header"),
    ],
)
def test_a_url_that_cannot_be_loaded_is_refused_with_the_reason(url, text):
    """Each text says what to give instead."""
    with pytest.raises(UsageError, match=text):
        parse_url(url)


@pytest.mark.parametrize(
    ("path", "model", "metadata", "infer"),
    [
        ("/v2/models/m", "m", "/v2/models/m", "/v2/models/m/infer"),
        ("/v2/models/m/infer", "m", "/v2/models/m", "/v2/models/m/infer"),
        (
            "/at/v2/models/a%20b/versions/2/infer",
            "a b",
            "/at/v2/models/a%20b/versions/2",
            "/at/v2/models/a%20b/versions/2/infer",
        ),
        ("/predict", None, None, None),
        ("/v2/models/m/ready", None, None, None),
    ],
)
def test_a_path_of_the_inference_protocol_is_recognised(path, model, metadata, infer):
    """Only then are payloads built from the model's metadata."""
    target = parse_url("http://h" + path)
    assert (target.model, target.metadata_path, target.infer_path) == (model, metadata, infer)


def test_a_header_is_taken_apart():
    """Name and value around the first colon."""
    assert parse_header("Authorization: Basic a:b") == ("Authorization", "Basic a:b")


@pytest.mark.parametrize("text", ["no colon", ": value", "a b: c", "X: a\r\nY: b"])
def test_a_header_that_would_break_the_request_is_refused(text):
    """No colon, no name, or a line break."""
    with pytest.raises(UsageError, match="expected 'Name: value'"):
        parse_header(text)
