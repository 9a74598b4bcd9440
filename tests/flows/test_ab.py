"""`tune ab` as a user runs it: real servers side by side, what is refused, and nothing left."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import pathlib
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from tuner.cli import main
from tuner.cli.commands.ab_formats import SCHEMA
from tuner.study import ab

SLOW, QUICK = (
    "batching: {max_size: 8, timeout_us: 60000}\n",
    "batching: {max_size: 8, timeout_us: 6000}\n",
)
"""Of four clients a batch never fills, so that the first one waits its timeout."""
QUICKLY = ("--seconds", "0.4")
"""What differs by a factor is told apart in six rounds of the shortest evaluations."""


def compare(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(["ab", *arguments])
    return code, out.getvalue(), err.getvalue()


class Slow(http.server.BaseHTTPRequestHandler):
    """Answers after as many ms as its server says."""

    wbufsize = 65_536
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One answer."""
        time.sleep(self.server.delay_s)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_arguments: object) -> None:
        """Nothing on standard error."""


@contextlib.contextmanager
def serving(delay_s: float) -> Iterator[tuple[str, http.server.ThreadingHTTPServer]]:
    """A server that runs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.delay_s = delay_s
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/page", server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def files(tmp_path: pathlib.Path) -> tuple[str, str]:
    """Two settings files, the slow one first."""
    slow, quick = tmp_path / "slow.yaml", tmp_path / "quick.yaml"
    slow.write_text(SLOW)
    quick.write_text(QUICK)
    return str(slow), str(quick)


def test_two_settings_files_are_told_apart_within_a_limit(files, tmp_path) -> None:
    """B is many times as quick: in every form that was asked for."""
    junit, page = tmp_path / "ab.xml", tmp_path / "page.md"
    load = ("--model", "echo", "--concurrency", "4", "--max-time", "30s", *QUICKLY)
    forms = ("--junit", str(junit), "--markdown", str(page), "--json")
    code, out, err = compare(*files, *load, "--fail-if", "mean worse by 5 %", *forms)
    answer = json.loads(out)
    assert (code, answer["exit_code"], answer["schema"]) == (0, 0, SCHEMA)
    assert (answer["decision"], answer["outcome"], answer["interleaved"]) == (
        "within",
        "better",
        True,
    )
    assert answer["interval"][1] < 0.5
    assert answer["between_session_interval"][0] < answer["interval"][0]
    mean = answer["figures"]["mean"]
    assert mean["b"] / mean["a"] == pytest.approx(answer["ratio"])
    assert mean["unit"] == "ms"
    assert answer["load"] == "4 in flight"
    assert answer["evaluation_sd"] is not None
    assert "  1 A " in err
    suite = ET.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")
    assert "| mean latency |" in page.read_text()


def test_what_is_worse_than_a_limit_ends_with_3() -> None:
    """Two servers that run are loaded as they are, and left."""
    with serving(0.002) as (quick, _), serving(0.02) as (slow, _):
        limit = ("--fail-if", "mean worse by 50 %")
        load = ("--concurrency", "2", "--max-time", "12s", *QUICKLY)
        code, out, _ = compare(quick, slow, *load, *limit)
        assert code == 3
        assert out.startswith(
            "Failed: the limit is exceeded (mean worse by 50 %). B is worse than A: mean latency "
        )


def test_without_a_limit_worse_is_an_answer_and_no_failure() -> None:
    """0, whatever came out; in a process of its own, which has imported nothing else."""
    with serving(0.002) as (quick, _), serving(0.02) as (slow, _):
        load = ("--concurrency", "2", "--max-time", "8s", *QUICKLY)
        command = [sys.executable, "-m", "tuner", "ab", quick, slow, *load]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("B is worse than A: mean latency ")


def test_a_server_that_is_gone_in_the_middle_is_one_line() -> None:
    """And what was started is ended."""
    with serving(0.002) as (quick, _), serving(0.002) as (lost, server):
        threading.Timer(1.0, server.server_close).start()
        threading.Timer(1.0, server.shutdown).start()
        code, out, err = compare(quick, lost, "--concurrency", "2", *QUICKLY)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("tune: B cannot be measured: ")


@pytest.mark.parametrize(
    ("a", "b", "more", "told"),
    [
        ("echo", "echo", (), "A and B are the same: model echo"),
        ("echo", "linear", (), "A takes data UINT8"),
        ("echo", "nosuch", (), "nosuch"),
        ("echo", "http://127.0.0.1:1/", (), "B: nothing listens at http://127.0.0.1:1/"),
        ("echo", "linear", ("--fail-if", "p99 by 5"), "'p99 by 5' is not a threshold"),
        (
            "echo",
            "linear",
            ("--fail-if", "cost worse by 5 %"),
            "expected one of the metrics mean, p50",
        ),
        (
            "echo",
            "linear",
            ("--fail-if", "p99 worse by 5 %", "--objective", "mean"),
            "leave --objective out",
        ),
        ("echo", "linear", ("--junit", "/nosuch/ab.xml"), "no such folder: /nosuch"),
        ("echo", "linear", ("--markdown", "/tmp"), "/tmp is a folder, expected a file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(a, b, more, told) -> None:
    """What was given, and what was expected."""
    code, out, err = compare(a, b, "--concurrency", "2", *more)
    assert (code, out) == (2, "")
    assert told in err.splitlines()[-1]


def test_what_cannot_be_compared_is_in_the_files_for_a_page(tmp_path) -> None:
    """A test that is an error, and a line."""
    junit, page = tmp_path / "ab.xml", tmp_path / "page.md"
    forms = ("--junit", str(junit), "--markdown", str(page))
    code, _, err = compare("echo", "nosuch", "--concurrency", "2", *forms)
    assert code == 2
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert suite.find("testcase/error").text in err
    assert "B: nosuch is not a file" in page.read_text()


def test_a_settings_file_needs_a_model_and_settings(files, tmp_path) -> None:
    """It names none; and what is no setting is said."""
    code, _, err = compare(*files, "--concurrency", "2")
    assert code == 2
    assert "names no model: give --model" in err
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("batching: {size: 8}\n")
    code, _, err = compare(files[0], str(wrong), "--model", "echo", "--concurrency", "2")
    assert code == 2
    assert "unknown setting 'batching.size'" in err


@pytest.mark.parametrize(
    ("text", "at"), [("p99 worse by 5 %", 0.0488), ("throughput worse by 10%", -0.1054)]
)
def test_a_limit_is_on_the_side_where_it_is_worse(text, at) -> None:
    """Above for what is made small, below for what is made large."""
    assert ab.parse_threshold(text).at == pytest.approx(at, abs=1e-4)
