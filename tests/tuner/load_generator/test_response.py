"""Reading responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator.response import (
    MAX_HEAD_BYTES,
    MAX_REPORTED_BYTES,
    BadResponse,
    HttpResponse,
    ResponseHead,
    ResponseReader,
    read_head,
)

CASES = {
    "plain": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, True),
    "plain without a reason": (b"HTTP/1.1 404\r\ncontent-length:0\r\n\r\n", 404, True),
    "no body by status": (b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", 204, True),
    "says close": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        200,
        False,
    ),
    "close among others": (
        b"HTTP/1.1 500 No\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok",
        500,
        False,
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, False),
    "HTTP/1.0 kept": (
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok",
        200,
        True,
    ),
    "chunked": (
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        ),
        200,
        True,
    ),
    "chunked with a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n",
        200,
        True,
    ),
    "continue before": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        200,
        True,
    ),
    "early hints before": (
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
            b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nok"
        ),
        503,
        True,
    ),
}


def read(pieces):
    """Feed the pieces; the answer must not come before the last."""
    reader = ResponseReader()
    for piece in pieces[:-1]:
        assert reader.feed(piece) is None
    return reader.feed(pieces[-1])


@pytest.mark.parametrize("case", CASES, ids=str)
@given(data=st.data())
def test_an_answer_is_complete_with_its_last_byte_however_it_is_split(case, data):
    """Status and keep-alive do not depend on where the bytes were cut; nothing comes early."""
    raw, status, keeps_alive = CASES[case]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(pieces) == HttpResponse(status, keeps_alive)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_after_the_end_spoil_the_connection_but_not_the_answer(case):
    """The status counts; another request on that connection could get the wrong answer."""
    raw, status, _ = CASES[case]
    assert ResponseReader().feed(raw + b"HTTP/1.1 200 OK\r\n") == HttpResponse(
        status, keeps_alive=False
    )
    assert ResponseReader().feed(raw + b"junk") == HttpResponse(status, keeps_alive=False)


def test_a_body_may_end_with_the_connection():
    """Without length and chunks the close is the end; before it there is no answer."""
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nsome") is None
    assert reader.feed(b"thing") is None
    assert reader.end() == HttpResponse(200, keeps_alive=False)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"HTTP/1.1 400 No\r\nContent-Length: 4\r\n\r\nwhy?surplus", b"why?"),
        (
            b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n2\r\npe\r\n0\r\n\r\n",
            b"nope",
        ),
        (b"HTTP/1.1 500 No\r\nContent-Length: 600\r\n\r\n" + b"x" * 600, b"x" * MAX_REPORTED_BYTES),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_beginning_of_an_errors_body_is_kept(raw, told, size):
    """It tells why; the body of an answer that is well is only counted."""
    reader = ResponseReader()
    answer = None
    for start in range(0, len(raw), size):
        answer = answer or reader.feed(raw[start : start + size])
    assert answer is not None
    assert reader.error_body == told


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
def test_an_answer_cut_off_is_none(begun):
    """A close in the middle of a response leaves nothing that could be counted."""
    reader = ResponseReader()
    if begun:
        assert reader.feed(begun) is None
    assert reader.end() is None


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_no_response_is_said_to_be_none(raw):
    """Other protocols, contradictions and endless heads end the request at once."""
    with pytest.raises(BadResponse):
        ResponseReader().feed(raw)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(raw):
    """Whatever comes is an answer, not yet an answer, or a bad response."""
    reader = ResponseReader()
    try:
        reader.feed(raw)
        reader.end()
    except BadResponse:
        pass


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_head_read_once_says_what_the_full_parser_says(case):
    """Heads that are recognised later by comparison carry the same status and keep-alive."""
    raw, status, keeps_alive = CASES[case]
    head, _, body = raw.partition(b"\r\n\r\n")
    plain = read_head(head)
    assert plain is None or plain == ResponseHead(status, len(body), keeps_alive)
    assert (plain is not None) == ("chunked" not in case and "before" not in case)
