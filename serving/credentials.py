"""What the server shows and what it asks for: its certificate, and the token of those who may ask it.

In: the settings of the listeners and the environment. Out: a token, and contexts of TLS. Reads files.
"""

from __future__ import annotations

import ipaddress
import pathlib
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from serving.errors import InvalidSettings
from serving.protocol.access import Token
from serving.settings import ServerSettings

TOKEN_VARIABLE = "LUTHIER_TOKEN"  # noqa: S105 - the variable's name
ADMIN_TOKEN_VARIABLE = "LUTHIER_ADMIN_TOKEN"  # noqa: S105 - likewise
STORE_VARIABLE = "LUTHIER_STATE_STORE_PASSWORD"
"""The password of `server.state_store`."""


class Tls(NamedTuple):
    """A certificate and its key."""

    certificate: str
    key: str

    def context(self, protocol: str) -> ssl.SSLContext:
        """A context of TLS for a server that speaks one protocol, by its name in ALPN.

        Raises:
            InvalidSettings: the files are no certificate and its key.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        try:
            # a key with a password must not make the server wait for somebody to type it
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise InvalidSettings(
                f"server.tls_certificate {self.certificate} and server.tls_key {self.key}: {error}; "
                f"expected PEM files, the key without a password"
            ) from error
        return context


def tls(settings: ServerSettings) -> Tls | None:
    """What the settings say of TLS; None: there is none.

    Raises:
        InvalidSettings: one of two is missing, or the files are no certificate and its key.
    """
    if settings.tls_certificate is None and settings.tls_key is None:
        return None
    if settings.tls_certificate is None or settings.tls_key is None:
        raise InvalidSettings("server.tls_certificate and server.tls_key: give both, or none")
    found = Tls(settings.tls_certificate, settings.tls_key)
    found.context("http/1.1")
    return found


def token(settings: ServerSettings, environment: Mapping[str, str]) -> Token | None:
    """The token of those who may ask; None: anybody may.

    Raises:
        InvalidSettings: its file cannot be read, or it is none.
    """
    return _token("token_file", settings.token_file, TOKEN_VARIABLE, environment)


def admin_token(settings: ServerSettings, environment: Mapping[str, str]) -> Token | None:
    """The token of those who may change the server; None: whoever reaches the admin port may.

    Raises:
        InvalidSettings: its file cannot be read, or it is none; or the port would be open to a network
            without one.
    """
    file = settings.admin_token_file
    found = _token("admin_token_file", file, ADMIN_TOKEN_VARIABLE, environment)
    if found is None and not _is_loopback(settings.admin_host):
        raise InvalidSettings(
            f"server.admin_host is {settings.admin_host!r}: beyond loopback the admin port needs a token, "
            f"in server.admin_token_file or {ADMIN_TOKEN_VARIABLE}"
        )
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(
    setting: str, file: str | None, variable: str, environment: Mapping[str, str]
) -> Token | None:
    text = environment.get(variable)
    where = variable
    if file is not None:
        where = f"server.{setting} {file}"
        try:
            text = pathlib.Path(file).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"{where} cannot be read: {error}") from error
    if text is None:
        return None
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidSettings(f"{where}: expected one word of printable ASCII")
    return Token(text.encode())
