"""Credentials between a gateway and its node agents: a token, and a key pair of each side for one run.

Each side makes its own pair and is told the other's certificate, so that no private key leaves its
machine: what starts the agents, as Ray does, need not keep a secret of theirs.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import ssl
from collections.abc import Mapping
from typing import NamedTuple, Self

from serving.errors import InvalidSettings

_DAYS = 3650
"""A pair ends with its gateway's run, so that it must not expire before."""


class Credentials(NamedTuple):
    """What one side knows. Never log it."""

    token: str
    certificate: str | None = None
    """PEM of this side's certificate; None: without TLS."""
    key: str | None = None
    """PEM of this side's private key."""
    peer: str | None = None
    """PEM of the only certificate that is accepted from the other side."""

    @classmethod
    def make(cls, *, tls: bool) -> Self:
        """Make a gateway's credentials for one run.

        Raises:
            InvalidSettings: TLS is wanted, and the package that makes certificates is missing.
        """
        token = secrets.token_urlsafe(32)
        return cls(token, *_pair()) if tls else cls(token)

    def public(self) -> dict[str, str | None]:
        """Return what the gateway's agents are told."""
        return {"token": self.token, "certificate": self.certificate}

    @classmethod
    def answering(cls, told: Mapping[str, str | None]) -> Self:
        """Make an agent's credentials for the gateway that told its own.

        Raises:
            InvalidSettings: as `make`.
        """
        token, peer = str(told["token"]), told["certificate"]
        if peer is None:
            return cls(token)
        certificate, key = _pair()
        return cls(token, certificate, key, peer)

    def context(self, *, server: bool) -> ssl.SSLContext | None:
        """Return a TLS context that accepts the peer's certificate alone, or None without TLS."""
        if self.certificate is None or self.key is None:
            return None
        side = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is what is expected
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.peer)
        load_pair(context, self.certificate, self.key)
        return context


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key from texts; the module itself reads files only."""
    pair = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(pair, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{pair}")
    finally:
        os.close(pair)


def _pair() -> tuple[str, str]:
    try:
        from cryptography import x509  # noqa: PLC0415 - only an installation with Ray has it
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSettings(
            "cluster.tls = mutual needs the package cryptography; pip install 'luthier[ray]', or set "
            "cluster.tls to none where the network encrypts"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "luthier")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks of machines differ
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
