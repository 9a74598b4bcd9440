"""M: the boundary to pages in a browser: Host by Origin by method, on both ports; and CORS preflights.

A port that is bound to loopback takes a Host that names loopback, and no other (a rebound name is another), but
for who asks for its health, which tells nothing else.
A page of another origin changes nothing: no update, load or unload, and nothing on the admin port.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from tests.abuse import wire
from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject, SubjectSpec

_BODY = b'{"inputs":[{"name":"data","shape":[1,1],"datatype":"UINT8","data":[7]}]}'
_INFER = "/v2/models/echo/infer"
_LOAD = "/v2/repository/models/echo/load"
_UNLOAD = "/v2/repository/models/none/unload"
_UPDATE = "/page/update"
_REFUSED = frozenset({400, 403, 421})
OURS = (
    "127.0.0.1:{port}",
    "localhost:{port}",
    "localhost",
    "127.0.0.1",
    "LOCALHOST:{port}",
    "[::1]:{port}",
    "127.0.0.2:{port}",
)
OTHERS = (
    "evil.example:{port}", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:{port}", "evil-localhost",
    "0.0.0.0:{port}", "169.254.169.254", "localhost@evil.example", "evil.example#localhost",
    "127.0.0.1:{port}.evil.example", "",
)  # fmt: skip
ORIGINS = (
    "https://evil.example",
    "http://localhost.evil.example",
    "null",
    "http://127.0.0.1:1",
    "file://",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a page or a rebound name, and whether it must be refused."""

    name: str
    method: str
    path: str
    host: str
    origin: str | None = None
    fields: str = ""
    is_admin: bool = False
    body: bytes = b""
    is_refused: bool = False
    is_readable: bool | None = None
    """Whether the answer may let the page's script read it; None: not looked at."""


def asks() -> Iterator[Ask]:
    """The table."""
    queries = (("GET", "/v2/health/live", b""), ("GET", "/v2", b""), ("POST", _INFER, _BODY))
    admin = (
        ("GET", "/health", b""),
        ("GET", "/metrics", b""),
        ("GET", "/admin/settings", b""),
        ("PATCH", "/admin/settings", b"{}"),
    )
    for is_admin, table in ((False, queries), (True, admin)):
        for method, path, body in table:
            for host in (*OURS, *OTHERS):
                yield Ask(name=f"{method} {path} of {host or 'no name'}", method=method, path=path, host=host,
                          body=body, is_admin=is_admin,
                          is_refused=host in OTHERS and "health" not in path)  # fmt: skip
    for origin in ORIGINS:
        for method, path, is_admin in (
            ("POST", _LOAD, False), ("POST", _UNLOAD, False), ("POST", _UPDATE, False),
            ("PATCH", "/admin/settings", True),
            ("POST", "/admin/models", True), ("DELETE", "/admin/models/echo/versions/1", True),
            ("POST", "/admin/add_app", True),
            ("POST", "/admin/shutdown", True), ("POST", "/admin/start_containers", True),
        ):  # fmt: skip
            yield Ask(name=f"{method} {path} from {origin}", method=method, path=path, host=OURS[0], origin=origin,
                      is_admin=is_admin, body=b"{}", is_refused=True, is_readable=False)  # fmt: skip
        yield Ask(name=f"infer from {origin}", method="POST", path=_INFER, host=OURS[0], origin=origin,
                  body=_BODY, is_readable=False)  # fmt: skip
        preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
        for path, is_admin in ((_INFER, False), ("/admin/settings", True)):
            yield Ask(name=f"preflight of {path} from {origin}", method="OPTIONS", path=path, host=OURS[0],
                      origin=origin, fields=preflight, is_admin=is_admin, is_refused=is_admin,
                      is_readable=False)  # fmt: skip
    yield Ask(name="cross-site load", method="POST", path=_UNLOAD, host=OURS[0],
              fields="Sec-Fetch-Site: cross-site\r\n",
              body=b"{}", is_refused=True)  # fmt: skip


def raw(ask: Ask, port: int, token: str | None) -> bytes:
    """Its bytes."""
    fields = f"Host: {ask.host.format(port=port)}\r\nConnection: close\r\n{ask.fields}"
    if ask.origin is not None:
        fields += f"Origin: {ask.origin}\r\n"
    if token is not None:
        fields += f"Authorization: Bearer {token}\r\n"
    if ask.body:
        fields += f"Content-Type: text/plain\r\nContent-Length: {len(ask.body)}\r\n"
    return f"{ask.method} {ask.path} HTTP/1.1\r\n{fields}\r\n".encode() + ask.body


def wrong(port: int, data: bytes, ask: Ask) -> str | None:
    """What is not as the table says; None: nothing."""
    heard = wire.exchange(port, [data], timeout_s=5.0)
    if len(heard.answers) != 1:
        return f"{len(heard.answers)} answers"
    answer = heard.answers[0]
    if ask.is_refused and answer.status not in _REFUSED:
        return f"answered {answer.status}, expected one of {sorted(_REFUSED)}"
    if not ask.is_refused and answer.status in {403, 421}:
        return f"refused with {answer.status}: {answer.body[:100]!r}"
    if ask.is_readable is False and b"access-control-allow-origin" in answer.head.lower():
        return "the page's script may read the answer"
    return None


def _prepared(subject: Subject) -> None:
    """Let there be an application that pages may want to teach."""
    application = {
        "name": "page",
        "input_type": "integers",
        "default_output": "-1",
        "latency_slo_micros": 100_000,
    }
    subject.ask("POST", "/admin/add_app", json.dumps(application), admin=True)


def run(context: Context) -> None:
    """The whole table; what is refused on the admin port is so for who has the token, too."""
    subject = context.subject
    _prepared(subject)
    for ask in asks():
        port = subject.admin_port if ask.is_admin else subject.port
        data = raw(ask, port, subject.admin_token() if ask.is_admin else None)
        found = wrong(port, data, ask)
        facts = {**dataclasses.asdict(ask), "body": ask.body.decode()}
        context.case(ask.name, found, ask.name.encode(), ask=facts)
    if subject.ready_within(2.0) is None:
        context.case("still there", "a page has ended the server")


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored case again: ports and token are those of now."""
    _prepared(subject)
    facts = dict(case.replay["ask"])
    ask = Ask(**{**facts, "body": facts["body"].encode()})
    port = subject.admin_port if ask.is_admin else subject.port
    return wrong(port, raw(ask, port, subject.admin_token() if ask.is_admin else None), ask)


SPEC = SubjectSpec(settings={"server.model_control": "explicit"})
STAGE = Stage(
    name="M",
    title="pages in a browser: Host by Origin by method",
    half=1,
    run=run,
    is_quick=True,
    quick_limit_s=40,
    spec=SPEC,
)
