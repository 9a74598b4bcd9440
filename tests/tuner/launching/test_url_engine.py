"""A running server and its hook: what the hook is given, its faults, and the default put back."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
from collections.abc import Iterator

import pytest

from serving.system.secret_variables import SECRETS
from tuner.engines.description import RequestFormat, UrlEngine
from tuner.errors import LaunchFailed
from tuner.launching.readiness import ReadinessCheck
from tuner.launching.url_engine import UrlLauncher, is_of_this_machine
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.processes

DEFAULT = Configuration({"batching.max_size": 1, "is_fast": False})
OTHER = Configuration({"batching.max_size": 8, "is_fast": True})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module", name="port")
def _port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def launcher(
    port: int, script: str, said: list[str], *, timeout_s: float = 20, ready_s: float = 5
) -> UrlLauncher:
    engine = UrlEngine(
        url=f"http://127.0.0.1:{port}/x",
        host="127.0.0.1",
        port=port,
        hook=("sh", "-c", script),
        hook_timeout_s=timeout_s,
        request=RequestFormat(protocol="raw", path="/x"),
        ready_timeout_s=ready_s,
    )
    return UrlLauncher(engine, model="m", sign=ReadinessCheck(path="/x"), say=said.append)


def orders(folder: pathlib.Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "orders").read_text().splitlines()]


def test_the_hook_gets_each_configuration_and_the_default_at_the_end(
    port: int, tmp_path: pathlib.Path
) -> None:
    """As JSON and as variables; what was first is put back once."""
    variables = tmp_path / "variables"
    said: list[str] = []
    script = (
        f'cat >> {tmp_path}/orders; echo "$KNOB_BATCHING_MAX_SIZE $KNOB_IS_FAST" >> {variables}'
    )
    made = launcher(port, script, said)
    server = made.start(DEFAULT)
    assert server.is_running()
    assert server.apply(OTHER) > 0
    server.stop()
    made.close()
    made.close()
    assert orders(tmp_path) == [dict(DEFAULT), dict(OTHER), dict(DEFAULT)]
    assert variables.read_text().split("\n")[:2] == ["1 false", "8 true"]
    assert said == []


def test_the_default_is_not_put_back_where_it_is(port: int, tmp_path: pathlib.Path) -> None:
    """A server that was never given another configuration is left alone."""
    made = launcher(port, f"cat >> {tmp_path}/orders", [])
    made.start(DEFAULT)
    made.close()
    assert len(orders(tmp_path)) == 1


def test_a_hook_gets_no_secrets(
    port: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and the password are for the owner's own servers; all else is inherited."""
    for name in (*SECRETS, "NO_SECRET"):
        monkeypatch.setenv(name, "a-secret-of-sixteen")
    launcher(port, f"env > {tmp_path}/given", []).start(DEFAULT)
    names = {one.partition("=")[0] for one in (tmp_path / "given").read_text().splitlines()}
    assert {"NO_SECRET", "KNOB_IS_FAST"} <= names
    assert not names & set(SECRETS)


def test_a_hook_that_starts_a_server_does_not_hold_the_tuner(port: int) -> None:
    """A process that lives on with the hook's output is none of its business."""
    made = launcher(port, "sleep 20 & echo $! > /dev/stderr", [])
    assert made.start(DEFAULT).apply(DEFAULT) < 10


@pytest.mark.parametrize(
    ("script", "cause", "said"),
    [
        ("echo no room left >&2; exit 3", "start", "status 3; last output: no room left"),
        ("yes | head -c 3000000; echo at last; exit 3", "start", "last output: at last"),
        ("exit 4", "start", "the hook ended with status 4"),
        ("sleep 30", "timeout", "the hook did not end within 0.3 s"),
    ],
)
def test_a_hook_that_fails_is_told_by_its_last_line(
    port: int, script: str, cause: str, said: str
) -> None:
    """A configuration that could not be applied, with the reason."""
    with pytest.raises(LaunchFailed) as caught:
        launcher(port, script, [], timeout_s=0.3 if cause == "timeout" else 20).start(DEFAULT)
    assert caught.value.cause == cause
    assert said in str(caught.value)


def test_a_default_that_cannot_be_put_back_is_said(port: int, tmp_path: pathlib.Path) -> None:
    """The end of the study is not lost for it."""
    said: list[str] = []
    flag = tmp_path / "broken"
    made = launcher(port, f"test ! -e {flag} || {{ echo gone >&2; exit 1; }}", said)
    made.start(DEFAULT).apply(OTHER)
    flag.touch()
    made.close()
    assert len(said) == 1
    assert "could not be restored: the hook ended with status 1; last output: gone" in said[0]


def test_a_server_that_is_not_there_is_not_ready() -> None:
    """The hook did its part, and nothing answers."""
    with pytest.raises(LaunchFailed, match=r"not ready after 0\.2 s: GET /x failed") as caught:
        launcher(9, "true", [], ready_s=0.2).start(DEFAULT)
    assert caught.value.cause == "timeout"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_a_server_elsewhere_is_told_from_one_of_this_machine(host: str, expected: bool) -> None:
    """192.0.2.0/24 is nobody's (RFC 5737), `.invalid` never resolves (RFC 2606)."""
    assert is_of_this_machine(host) == expected
