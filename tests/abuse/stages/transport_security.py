"""L: TLS: old versions, wrong protocols, handshakes that stall, connections that are cut without an end."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject, SubjectSpec

_GET = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ENDED_S = 15.0
"""A handshake has 10 s."""


def run(context: Context) -> None:
    """A certificate of our own, a second server that shows it, and the table against that."""
    import trustme  # noqa: PLC0415 - only the campaign has it

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = context.folder / "certificate.pem", context.folder / "key.pem"
    issued.private_key_pem.write_to_path(str(key))
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(str(certificate), append=number > 0)
    folder = context.folder / "s"
    folder.mkdir()
    spec = SubjectSpec(
        settings={"server.tls_certificate": str(certificate), "server.tls_key": str(key)}
    )
    with Subject(folder, spec) as subject:
        for port, protocol in ((subject.port, "http/1.1"), (subject.grpc_port, "h2")):
            for name, attempt in _table(authority, protocol).items():
                context.case(f"{name}, {protocol}", _tried(attempt, port))
        context.case(
            "100 reconnects", _tried(lambda port: _reconnects(authority, port), subject.port)
        )
        context.case(
            "ready afterwards",
            None if _good(_trusting(authority), subject.port) == 200 else "it is not",
        )
        errors = subject.log_text().count("Traceback (most recent")
        context.case("the log", f"{errors} tracebacks" if errors else None)


def _tried(attempt: Callable[[int], str | None], port: int) -> str | None:
    began_s = time.monotonic()
    try:
        wrong = attempt(port)
    except (OSError, ssl.SSLError) as error:
        return f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - began_s
    return wrong or (f"took {took_s:.0f} s" if took_s > ENDED_S else None)


def _trusting(authority: Any, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _table(authority: Any, protocol: str) -> dict[str, Callable[[int], str | None]]:
    other = "h2" if protocol == "http/1.1" else "http/1.1"
    return {
        "the right protocol": lambda port: _agreed(_trusting(authority, protocol), port, protocol),
        "another protocol": lambda port: _not_agreed(_trusting(authority, other), port, other),
        "no protocol": lambda port: _not_agreed(_trusting(authority), port, other),
        "TLS 1.0": lambda port: _old(authority, port, ssl.TLSVersion.TLSv1),
        "TLS 1.1": lambda port: _old(authority, port, ssl.TLSVersion.TLSv1_1),
        "clear text": lambda port: _ended(port, _GET),
        "nothing": lambda port: _ended(port, b""),
        "half a ClientHello": lambda port: _ended(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        "a huge ClientHello": lambda port: _ended(port, b"\x16\x03\x01\x40\x00\x01\xff\xff\xfb" + bytes(16_380) * 4),
        "an alert": lambda port: _ended(port, b"\x15\x03\x01\x00\x02\x02\x28"),
        "a wrong certificate": lambda port: _client_certificate(authority, port),
        "no close_notify": lambda port: _cut(authority, port),
    }  # fmt: skip


@contextlib.contextmanager
def _connected(context: ssl.SSLContext, port: int) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), 5) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        yield tls


def _agreed(context: ssl.SSLContext, port: int, protocol: str) -> str | None:
    with _connected(context, port) as tls:
        chosen = tls.selected_alpn_protocol()
        return None if chosen == protocol else f"ALPN chose {chosen}"


def _not_agreed(context: ssl.SSLContext, port: int, other: str) -> str | None:
    try:
        with _connected(context, port) as tls:
            return f"ALPN chose {other}" if tls.selected_alpn_protocol() == other else None
    except (ssl.SSLError, ConnectionError):
        return None


def _old(authority: Any, port: int, version: ssl.TLSVersion) -> str | None:
    context = _trusting(authority)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with contextlib.suppress(ValueError):
        context.minimum_version = version
        context.maximum_version = version
    try:
        with _connected(context, port) as tls:
            return f"it speaks {tls.version()}" if tls.version() in {"TLSv1", "TLSv1.1"} else None
    except (ssl.SSLError, ConnectionError):
        return None


def _ended(port: int, data: bytes) -> str | None:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.settimeout(ENDED_S)
        try:
            sock.sendall(data)
            while sock.recv(4096):
                pass
        except TimeoutError:
            return "it was not ended"
        except OSError:
            pass
    return None


def _client_certificate(authority: Any, port: int) -> str | None:
    import trustme  # noqa: PLC0415 - only the campaign has it

    context = _trusting(authority)
    trustme.CA().issue_cert("someone").configure_cert(context)
    with _connected(context, port) as tls:
        return None if tls.version() else "no TLS"


def _cut(authority: Any, port: int) -> str | None:
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", port), 5)
        tls = _trusting(authority).wrap_socket(sock, server_hostname="localhost")
        tls.sendall(_GET[:20])
        socket.socket(fileno=tls.detach()).close()
    return None


def _good(context: ssl.SSLContext, port: int) -> int:
    with _connected(context, port) as tls:
        tls.sendall(_GET)
        return int(tls.recv(4096)[9:12])


def _reconnects(authority: Any, port: int) -> str | None:
    context = _trusting(authority)
    statuses = {_good(context, port) for _ in range(100)}
    return None if statuses == {200} else f"answered {statuses}"


STAGE = Stage(
    name="L",
    title="TLS",
    half=2,
    run=run,
    limit_s=300,
    modules={"trustme": "trustme"},
)
