"""How alike the executions of one replica are: the longest of a thousand, and of ten thousand, over the median.

    python benchmarks/predictability.py [--requests 30000] [--quick] [--write] [--json]

One replica of `resnet` with one thread, one request at a time, single images. The time of an execution is
the replica's own (`Server-Timing`), without queues, sockets and the gateway. Measured with nothing else
on the machine, and then beside a neighbour on every core that copies memory all the time. Clockwork reports
0.03 % between the median and p99.99 of ResNet-50 on a GPU of its own (Gujarati et al., OSDI'20, section 2); a
core that is shared with a kernel, a gateway, a client and, on a rented machine, with other tenants is no
such thing, and this page says how far from it it is. Then both again with the replica pinned to one core.

`--write` also writes the factors of the first measurement for emulated workers
(`benchmarks/scenarios/jitter-resnet.txt`). Takes about two minutes. There is no target.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import open_loop
import result
import server_process
from numpy.typing import NDArray

Array = NDArray[np.float64]

MODEL = "resnet"
SETTINGS = {
    "server.timing": "header",
    "replica.count": 1,
    "replica.threads": 1,
    "batching.max_size": 1,
}
FIRST = 500
"""Requests that do not count."""
QUANTILES = (0.5, 0.99, 0.999, 0.9999)
FACTORS = 10_000
JITTER = pathlib.Path(__file__).resolve().parent / "scenarios" / "jitter-resnet.txt"
NEIGHBOUR = "import numpy\na = numpy.zeros(1 << 22)\nb = a.copy()\nwhile True:\n    b[:] = a\n"
ALONE, PINNED, BESIDE = "alone", "pinned to a core", "beside neighbours"
NOTE = (
    "In a replica nothing but the model runs while it executes: the garbage collector is off and collects between "
    "requests, what was there at the start is frozen, buffers are allocated and first calls made when the model is "
    "loaded, and one thread has no other to wait for. Threads are not pinned, unless a row says so."
)
EXECUTION = re.compile(rb"exec;dur=([0-9.]+)")
SETTLE_S = 1.0


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--requests", type=int, default=30_000, help="for each measurement; default 30,000"
    )
    options = result.parsed(parser, requests=1000)
    count = int(options.requests)
    found: dict[str, Array] = {}
    with server_process.served(MODEL, SETTINGS) as where:
        for name in (ALONE, PINNED):
            if name == PINNED:
                pin(where.admin_port)
            result.say(name)
            found[name] = executions_ms(where.port, count)
            result.say(f"{name}, {BESIDE}")
            with neighbours():
                found[f"{name}, {BESIDE}"] = executions_ms(where.port, count)
    if options.write:
        _write_factors(found[ALONE])
    ratios = {name: np.quantile(some, 0.999) / np.median(some) for name, some in found.items()}
    return result.conclude(
        result.Result(
            name="predictability",
            question="How alike are the executions of one replica on a core that is not its own?",
            target="none",
            verdict=(
                f"p99.9 of an execution is {ratios[ALONE]:.2f} times the median alone, "
                f"{ratios[f'{ALONE}, {BESIDE}']:.2f} times beside neighbours; with the replica on one core "
                f"{ratios[PINNED]:.2f} and {ratios[f'{PINNED}, {BESIDE}']:.2f} times."
            ),
            is_met=True,
            tables=(
                result.Table(
                    title=f"Executions of {MODEL}, one image each ({count:,} of each kind)",
                    head=(
                        "",
                        "p50 ms",
                        "p99 / p50",
                        "p99.9 / p50",
                        "p99.99 / p50",
                        "longest / p50",
                    ),
                    rows=[(name, *_cells(some)) for name, some in found.items()],
                ),
            ),
            figures={
                name: dict(
                    zip(map(str, QUANTILES), np.quantile(some, QUANTILES).tolist(), strict=True)
                )
                for name, some in found.items()
            },
            packages=("onnxruntime", "numpy"),
            notes=(NOTE,),
        ),
        options,
    )


def executions_ms(port: int, count: int) -> Array:
    """What so many executions took, one after another."""
    payloads = open_loop.images(port, MODEL)
    bodies, headers = payloads.requests, dict(payloads.headers)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    found = []
    for number in range(FIRST + count):
        connection.request("POST", payloads.path, bodies[number % len(bodies)], headers)
        answer = connection.getresponse()
        answer.read()
        told = EXECUTION.search((answer.getheader("Server-Timing") or "").encode())
        if answer.status != 200 or told is None:
            raise SystemExit(f"predictability: status {answer.status} without a time of execution")
        if number >= FIRST:
            found.append(float(told.group(1)))
    connection.close()
    return np.array(found)


def pin(admin_port: int) -> None:
    """Every thread of the replica on the last core."""
    _, _, answer = server_process.administer(admin_port, "GET", "/admin/replicas")
    (replica,) = json.loads(answer)["replicas"]
    for task in pathlib.Path(f"/proc/{replica['pid']}/task").iterdir():
        os.sched_setaffinity(int(task.name), {max(os.sched_getaffinity(0))})


@contextlib.contextmanager
def neighbours() -> Iterator[None]:
    """A process on every core that copies memory, until the end."""
    started = [
        subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def _cells(some: Array) -> tuple[str, ...]:
    median, *others = np.quantile(some, QUANTILES)
    most = float(some.max())
    return (f"{median:.3f}", *(f"{value / median:.2f}" for value in (*others, most)))


def _write_factors(some: Array) -> None:
    """As quantiles, so that the file has the same size whatever was measured."""
    shares = (np.arange(FACTORS) + 0.5) / FACTORS
    factors = np.quantile(some, shares) / np.median(some)
    JITTER.write_text("".join(f"{factor:.4f}\n" for factor in factors), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
