"""A PostgreSQL server of the test's own, of Debian's package; the test is skipped where there is none."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""
READY_S = 30.0
OPTIONS = (
    *("-c", "listen_addresses="),
    *("-c", "fsync=off"),
    *("-c", "max_connections=100"),
    *("-c", "shared_buffers=16MB"),
)


@contextlib.contextmanager
def running_postgresql() -> Iterator[str]:
    """A server on a socket in a folder of its own, and the URL of its database.

    It is ended at once, without saving, however the test ends.
    """
    pytest.importorskip("psycopg", reason="the extra postgresql is not installed")
    programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if programs is None:
        pytest.skip("no PostgreSQL here; on Debian: apt-get install postgresql")
    user = USER if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if user:
            shutil.chown(folder, user)
        # What it leaves in shared memory is removed when it is told to end, not when it is killed.
        start = [
            "setpriv",
            "--pdeathsig",
            "QUIT",
            str(programs / "postgres"),
            "-D",
            f"{folder}/data",
        ]
        made = ["-D", f"{folder}/data", "-U", USER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            [str(programs / "initdb"), *made],
            user=user,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with subprocess.Popen(
            [*start, "-k", folder, *OPTIONS],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                _wait_until_ready(programs, folder)
                yield f"postgresql://{USER}@/postgres?host={folder}"
            finally:
                process.send_signal(signal.SIGQUIT)


def _wait_until_ready(programs: pathlib.Path, folder: str) -> None:
    until_s = time.monotonic() + READY_S
    asked = [str(programs / "pg_isready"), "-q", "-h", folder]
    while subprocess.run(asked, check=False).returncode:
        assert time.monotonic() < until_s, "PostgreSQL did not start"
        time.sleep(0.05)
