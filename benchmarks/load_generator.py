"""Our load generator against `wrk`: same null server, body and concurrency, alternating rounds.

    apt-get install wrk
    python benchmarks/load_generator.py [--rounds 5] [--seconds 3] [--json]

Prints for each round the median round trip and the requests per second of both, the ratio of the
medians, and our CPU time per request. Ends with 1 when the target is missed: the median ratio at
most 2, and at least 20,000 requests per second in the median round. On a busy machine both suffer,
not always equally: use a quiet one with 2 cores or more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from tuner.traffic import payloads
from tuner.traffic.generator import Generator
from tuner.traffic.plan import LoadPlan

BODY_BYTES = 3_000
CONCURRENCY = 20
MOST_RATIO = 2.0
LEAST_PER_S = 20_000.0
PATH = "/v2/models/null/infer"
_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}


@contextlib.contextmanager
def null_server() -> Iterator[int]:
    command = [sys.executable, str(pathlib.Path(__file__).with_name("null_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def ours(generator: Generator, port: int, seconds: float) -> dict[str, float]:
    plan = LoadPlan(host="127.0.0.1", port=port, concurrency=CONCURRENCY, seconds=seconds)
    result = generator.run(plan)
    records = result.records
    measured = (records.finished_s > result.warmup_end_s) & (
        records.finished_s <= result.measured_end_s
    )
    assert np.all(records.status == 200)
    count = int(np.count_nonzero(measured))
    return {
        "p50_us": 1e6 * float(np.median((records.finished_s - records.started_s)[measured])),
        "per_s": count / result.measured_s,
        "cpu_us": 1e6 * result.client_cpu_s / count,
    }


def wrk(script: pathlib.Path, port: int, seconds: float) -> dict[str, float]:
    whole_s = max(1, round(seconds))
    command = ["wrk", "-t1", f"-c{CONCURRENCY}", f"-d{whole_s}s", "--latency", "-s", str(script)]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{PATH}"], capture_output=True, text=True, check=True
    )
    median = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if median is None or rate is None:
        raise SystemExit(f"wrk printed something unknown:\n{done.stdout}")
    return {"p50_us": float(median[1]) * _UNITS_US[median[2]], "per_s": float(rate[1])}


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    results = []
    with null_server() as port, Generator() as generator, tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "post.lua"
        script.write_text(
            f'wrk.method = "POST"\nwrk.body = string.rep("x", {BODY_BYTES})\n'
            'wrk.headers["Content-Type"] = "application/octet-stream"\n'
        )
        generator.set_payloads(
            payloads.raw(
                [b"x" * BODY_BYTES],
                path=PATH,
                method="POST",
                headers={"Content-Type": "application/octet-stream"},
                description="3 KB",
            )
        )
        for number in range(rounds):
            # The first of a pair alternates, so that a drift of the machine favours neither.
            if number % 2:
                theirs, mine = wrk(script, port, seconds), ours(generator, port, seconds)
            else:
                mine, theirs = ours(generator, port, seconds), wrk(script, port, seconds)
            results.append(
                {"ours": mine, "wrk": theirs, "ratio": mine["p50_us"] / theirs["p50_us"]}
            )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Our load generator against wrk.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, per client and round")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is not installed: apt-get install wrk", file=sys.stderr)
        return 1
    results = measure(options.rounds, options.seconds)
    ratio = statistics.median(result["ratio"] for result in results)
    per_s = statistics.median(result["ours"]["per_s"] for result in results)
    is_met = ratio <= MOST_RATIO and per_s >= LEAST_PER_S
    summary = {"rounds": results, "ratio": ratio, "per_s": per_s, "is_met": is_met}
    if options.json:
        print(json.dumps(summary))
        return 0 if is_met else 1
    print("round   ours p50 us      /s   CPU us     wrk p50 us      /s    ratio")
    for number, result in enumerate(results, start=1):
        mine, theirs = result["ours"], result["wrk"]
        print(
            f"{number:5}   {mine['p50_us']:11.0f} {mine['per_s']:7.0f} {mine['cpu_us']:8.1f}   "
            f"{theirs['p50_us']:12.0f} {theirs['per_s']:7.0f} {result['ratio']:8.2f}"
        )
    print(
        f"median ratio {ratio:.2f} (target: at most {MOST_RATIO:g}), {per_s:,.0f} requests/s "
        f"(target: at least {LEAST_PER_S:,.0f}): {'met' if is_met else 'MISSED'}"
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
