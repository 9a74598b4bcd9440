"""A certificate of the test's own, made by openssl; the test is skipped where that is missing."""

import pathlib
import shutil
import subprocess

import pytest


def certificate_in(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Paths of a certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    paths = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths
