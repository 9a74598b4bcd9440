"""The server's TLS certificates, tokens and trusted host names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import NamedTuple

from serving.api.http.access import Token
from serving.api.transport.trusted_hosts import TrustedHosts, is_loopback
from serving.errors import InvalidSettings
from serving.settings.server import ServerSettings
from serving.system import user_files
from serving.system.secret_variables import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE

MIN_CHARACTERS = 16


class Tls(NamedTuple):
    """A certificate and its key."""

    certificate: str
    key: str

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return a server's TLS context for one ALPN protocol, or raise InvalidSettings."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        try:
            for file in (self.certificate, self.key):
                user_files.read(file)  # OpenSSL would block on a FIFO, and read a device for ever
            # a key with a password must not prompt for it
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise InvalidSettings(
                f"server.tls_certificate {self.certificate} and server.tls_key {self.key}: {error}; "
                f"expected PEM files, the key without a password"
            ) from error
        return context


def tls(settings: ServerSettings) -> Tls | None:
    """Return the configured certificate and key, if any.

    Raises:
        InvalidSettings: only one of the two is set, or the files are invalid.
    """
    if settings.tls_certificate is None and settings.tls_key is None:
        return None
    if settings.tls_certificate is None or settings.tls_key is None:
        raise InvalidSettings("server.tls_certificate and server.tls_key: set both, or neither")
    found = Tls(settings.tls_certificate, settings.tls_key)
    found.context("http/1.1")
    return found


def token(settings: ServerSettings, environment: Mapping[str, str]) -> Token | None:
    """Return the inference port's token (None if access is open), or raise InvalidSettings."""
    return _token("token_file", settings.token_file, TOKEN_VARIABLE, environment)


def admin_token(settings: ServerSettings, environment: Mapping[str, str]) -> Token | None:
    """Return the configured token of the admin port, if any.

    Raises:
        InvalidSettings: the token is unreadable, invalid, missing although a network can reach the
            port, or set although `server.admin_access` is open.
    """
    file = settings.admin_token_file
    found = _token("admin_token_file", file, ADMIN_TOKEN_VARIABLE, environment)
    if found is None and not is_loopback(settings.admin_host):
        raise InvalidSettings(
            f"server.admin_host is {settings.admin_host!r}: beyond loopback the admin port needs a token, "
            f"in server.admin_token_file or {ADMIN_TOKEN_VARIABLE}"
        )
    if found is not None and settings.admin_access == "open":
        where = ADMIN_TOKEN_VARIABLE if file is None else "server.admin_token_file"
        raise InvalidSettings(
            f"server.admin_access is open (--no-admin-token), but {where} sets a token: "
            "remove one of them"
        )
    return found


def admin_tls(settings: ServerSettings) -> Tls | None:
    """Return the certificate and key of the admin port, or None on loopback.

    Raises:
        InvalidSettings: a network can reach the port and TLS is missing, or `tls` raises it.
    """
    if is_loopback(settings.admin_host):
        return None
    found = tls(settings)
    if found is None:
        raise InvalidSettings(
            f"server.admin_host is {settings.admin_host!r}: beyond loopback the admin "
            "port requires TLS, as its token allows to run code; set "
            "server.tls_certificate and server.tls_key"
        )
    return found


def hosts(settings: ServerSettings, bound: str) -> TrustedHosts | None:
    """Return the trusted host names of a port, or None to trust any host."""
    further = {name for text in (settings.hosts or "").split(",") if (name := text.strip())}
    if "*" in further or not (further or is_loopback(bound)):
        return None
    return TrustedHosts({bound, *further})


def _token(
    setting: str, file: str | None, variable: str, environment: Mapping[str, str]
) -> Token | None:
    text = environment.get(variable)
    where = variable
    if file is not None:
        where = f"server.{setting} {file}"
        try:
            text = user_files.text(file, encoding="ascii")
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"{where} cannot be read: {error}") from error
    if text is None:
        return None
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidSettings(f"{where}: expected one word of printable ASCII")
    if len(text) < MIN_CHARACTERS:
        raise InvalidSettings(
            f"{where}: a token of {len(text)} characters, expected {MIN_CHARACTERS} or more, such as "
            "`openssl rand -hex 16` makes"
        )
    return Token(text.encode())
