"""A Redis server of the test's own, of Debian's package; the test is skipped where there is none."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def running_redis(
    folder: pathlib.Path, *more: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of our own on a socket in the folder, with more options, and its address.

    It is killed at the end, however the test ends.
    """
    pytest.importorskip("redis", reason="the extra redis is not installed")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server here; on Debian: apt-get install redis-server")
    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    with subprocess.Popen(
        [binary, *options, "--save", "", "--appendonly", "yes", *more], stdout=subprocess.DEVNULL
    ) as process:
        try:
            for _ in range(500):
                if _answers(path):
                    break
                time.sleep(0.02)
            yield process, f"unix://{path}"
        finally:
            process.kill()


def _answers(path: pathlib.Path) -> bool:
    """Whether a server listens there: a killed one leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0
