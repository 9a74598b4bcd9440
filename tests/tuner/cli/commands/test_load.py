"""`tune load` against a server of this process: what it prints, and its exit code."""

from __future__ import annotations

import http.server
import json
import pathlib
import re
import threading
import time
from collections.abc import Iterator

import pytest

from tuner.cli import main

pytestmark = pytest.mark.processes

EVERY = 20
"""One request in so many fails at /rare."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by path: /rare and /often fail now and then, /never always; /slow takes 20 ms."""

    wbufsize = 65_536  # head and body in one piece: apart, each answer would wait 40 ms for an acknowledgement

    protocol_version = "HTTP/1.1"
    turn = 0

    def do_GET(self) -> None:
        """One answer."""
        Handler.turn += 1
        often = {"/rare": 500, "/often": EVERY, "/never": 1, "/slow": 10**9}[self.path]
        if self.path == "/slow":
            time.sleep(0.02)
        is_bad = Handler.turn % often == 0
        body = b'{"error":\n "expected 1 item"}' if is_bad else b"ok"
        self.send_response(400 if is_bad else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing on standard error."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def load(url: str, *more: str) -> int:
    Handler.turn = 0  # each test counts its own: where the last one stopped must not matter
    return main.main(
        ["load", url, "--concurrency", "1", "--requests", "600", "--warmup", "0", *more]
    )


def test_few_errors_are_said_with_their_statuses(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under one request in a hundred the figures stand, and what failed is told with its reason."""
    assert load(f"{url}/rare") == 0
    out = capsys.readouterr().out
    # how many of the warm-up came before them decides whether one or two of 600 are the 500th
    assert re.search(r"([12]) of 600 requests failed \(0\.[23] %\): \1 x status 400", out)
    assert 'the first one said "expected 1 item"' in out


def test_more_errors_than_a_study_takes_are_exit_code_one(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are printed all the same, with the reason to doubt them."""
    assert load(f"{url}/often", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == 1
    assert data["errors"] == 600 // EVERY
    assert any("30 x status 400; the first one said" in note for note in data["notes"])
    assert any("more than 1.0 % of the requests failed" in note for note in data["notes"])


def test_nothing_but_errors_says_what_the_server_said(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No figure, exit code 1, and the body of the first answer."""
    assert load(f"{url}/never") == 1
    assert 'status 400; the first one said "expected 1 item"' in capsys.readouterr().err


def test_an_open_loop_keeps_its_rate_and_says_when_it_was_late(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 70 a second over one connection that carries 50, most wait; over many, each takes 20 ms.

    So few that the server does not count as overloaded.
    """
    command = ["load", f"{url}/slow", "--rate", "70", "--requests", "20", "--warmup", "0"]
    assert main.main([*command, "--concurrency", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["rate_per_s"], data["arrivals"], data["concurrency"]) == (70, "poisson", 1)
    assert data["requests"] == 20
    assert data["p50_ms"] > 60
    assert any("of the requests were sent more than 1 ms after" in note for note in data["notes"])
    assert (data["goodput"], data["slo_ms"], data["seed"]) == (None, None, 0)
    more = ("--arrivals", "constant", "--concurrency", "40", "--seed", "3", "--slo-ms", "10000")
    assert main.main([*command, *more, "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)
    assert 20 <= kept["p50_ms"] < data["p50_ms"]
    assert (kept["slo_ms"], kept["seed"]) == (10_000, 3)
    assert kept["goodput"] == kept["throughput_per_s"]


def test_an_overload_and_a_trace_are_said(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """Ten times what one connection carries: it fell behind. A trace has a rate of its own, and all is answered."""
    command = ["load", f"{url}/slow", "--seconds", "0.4", "--warmup", "0", "--concurrency", "1"]
    assert main.main([*command, "--rate", "500", "--arrivals", "burst", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == 1
    assert any("the server fell behind by" in note for note in data["notes"])
    assert "fell behind" in data["problems"][0]
    trace = tmp_path / "trace.txt"
    trace.write_text("0\n0.1\n0.2\n", encoding="utf-8")
    assert main.main([*command, "--arrivals", f"trace:{trace}", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["arrivals"], data["requests"]) == ("trace", 4)
    assert data["rate_per_s"] == pytest.approx(10)
    assert not any("fell behind" in note for note in data["notes"])
    assert data["problems"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "use --concurrency N (closed loop), --rate R (open loop)"),
        (["--rate", "0"], "--rate 0: expected requests a second, above 0"),
        (["--rate", "nan"], "--rate nan: expected"),
        (["--rate", "5", "--concurrency", "0"], "--concurrency 0: expected a whole number from 1"),
        (
            ["--concurrency", "2", "--arrivals", "constant"],
            "--arrivals constant: only allowed in an open loop",
        ),
        (["--rate", "5", "--seed", "-1"], "expected a whole number from 0"),
        (["--rate", "5", "--slo-ms", "0"], "--slo-ms 0.0: expected milliseconds above 0"),
        (["--arrivals", "trace:none.txt"], "trace none.txt: No such file"),
    ],
)
def test_a_load_without_sense_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is sent."""
    assert main.main(["load", "http://127.0.0.1:9/x", *options]) == 2
    assert said in capsys.readouterr().err
