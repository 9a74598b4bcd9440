"""A Redis server of the test's own, of Debian's package; the test is skipped where there is none."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import time

import pytest


def started_redis(folder: pathlib.Path, *more: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server of our own on a socket in the folder, with more options, and its address."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server here; on Debian: apt-get install redis-server")
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    process = subprocess.Popen(
        [binary, *options, "--save", "", "--appendonly", "yes", *more], stdout=subprocess.DEVNULL
    )
    for _ in range(500):
        if socket.exists():
            break
        time.sleep(0.02)
    return process, f"unix://{socket}"
