"""Drives a gRPC method with `h2load`: one recorded message, N requests at a time, over clear text.

In: port, method, message, and how the N requests spread over connections. Out: requests per second.
`h2load` knows HTTP/2 and nothing of gRPC: a call that fails is a 200 to it, with the status in the
trailer. So the bytes that came back are counted, too: every answer must be as long as a right one.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import tempfile

import wrk

_RATE = re.compile(r"finished in [\d.]+\w+, ([\d.]+) req/s")
_COUNTS = re.compile(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_DATA = re.compile(r"\((\d+)\) data")
_MEAN = re.compile(r"time for request: +\S+ +\S+ +([\d.]+)(us|ms|s)")
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def is_missing() -> str | None:
    """How to install h2load, when it is not there."""
    if shutil.which("h2load"):
        return None
    return "h2load is not installed; on Debian: apt-get install nghttp2-client"


def frame(message: bytes) -> bytes:
    """A message as it travels: not compressed, its length in four bytes."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def drive(
    port: int,
    method: str,
    message: bytes,
    *,
    answer_bytes: int,
    connections: int,
    streams: int,
    seconds: int,
) -> tuple[float, float]:
    """Load the server for whole seconds.

    Returns:
        Requests per second, and the mean time of one in ms.

    Raises:
        WrongAnswers: a request failed, or the answers are not all `answer_bytes` long.
    """
    with tempfile.TemporaryDirectory() as folder:
        body = pathlib.Path(folder) / "frame"
        body.write_bytes(frame(message))
        output = subprocess.run(
            ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-D{seconds}", "-d", str(body),
             "-H", "content-type: application/grpc", "-H", "te: trailers",
             f"http://127.0.0.1:{port}/{method}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout  # fmt: skip
    rate, counts, data, mean = (p.search(output) for p in (_RATE, _COUNTS, _DATA, _MEAN))
    if not (rate and counts and data and mean):
        raise wrk.WrongAnswers(f"h2load said what is not understood:\n{output[-800:]}")
    done, succeeded, *lost = (int(each) for each in counts.groups())
    size = answer_bytes + len(frame(b""))
    # When time is up, some answers have begun to arrive that are not counted as done.
    right = range(done * size, (done + connections * streams) * size + 1)
    if not done or succeeded != done or any(lost) or int(data[1]) not in right:
        raise wrk.WrongAnswers(
            f"of {done} requests {succeeded} succeeded; {data[1]} bytes came back, "
            f"{done * size} are right"
        )
    return float(rate[1]), float(mean[1]) * _MS[mean[2]]
