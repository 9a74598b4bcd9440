"""Our load generator against `wrk`: same null server, body and concurrency, alternating rounds.

    apt-get install wrk
    python benchmarks/load_generator.py [--rounds 5] [--seconds 3] [--write] [--json]

Prints for each round the median round trip and the requests per second of both, the ratio of the
medians, and our CPU time per request. Ends with 1 when the target is missed: the median ratio at
most 2, and at least 20,000 requests per second in the median round. On a busy machine both suffer,
not always equally: use a quiet one with 2 cores or more.
"""

from __future__ import annotations

import argparse
import contextlib
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
import result

from tuner.load_generator import payloads
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.plan import PhasePlan

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


def ours(generator: LoadGenerator, port: int, seconds: float) -> dict[str, float]:
    plan = PhasePlan(host="127.0.0.1", port=port, concurrency=CONCURRENCY, seconds=seconds)
    phase = generator.run(plan)
    records = phase.records
    measured = (records.finished_s > phase.warmup_end_s) & (
        records.finished_s <= phase.measured_end_s
    )
    assert np.all(records.status == 200)
    count = int(np.count_nonzero(measured))
    return {
        "p50_us": 1e6 * float(np.median((records.finished_s - records.started_s)[measured])),
        "per_s": count / phase.measured_s,
        "cpu_us": 1e6 * phase.client_cpu_s / count,
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
    with (
        null_server() as port,
        LoadGenerator() as generator,
        tempfile.TemporaryDirectory() as folder,
    ):
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


def concluded(results: list[dict[str, Any]]) -> result.Result:
    """The rounds as a table, and whether both targets are met."""
    ratio = statistics.median(found["ratio"] for found in results)
    per_s = statistics.median(found["ours"]["per_s"] for found in results)
    rows = [
        (
            str(number),
            f"{found['ours']['p50_us']:.0f}",
            f"{found['ours']['per_s']:,.0f}",
            f"{found['ours']['cpu_us']:.1f}",
            f"{found['wrk']['p50_us']:.0f}",
            f"{found['wrk']['per_s']:,.0f}",
            f"{found['ratio']:.2f}",
        )
        for number, found in enumerate(results, start=1)
    ]
    head = ("round", "p50 us", "requests/s", "CPU us each", "wrk p50 us", "wrk /s", "ratio of p50")
    return result.Result(
        name="load_generator",
        question="Does our load generator see what wrk sees? A null HTTP server, 3 KB bodies, "
        "20 connections, both clients in turn.",
        target=f"median round trip at most {MOST_RATIO:g} x wrk's in the same run, and at least "
        f"{LEAST_PER_S:,.0f} requests/s",
        verdict=f"{ratio:.2f} x wrk's median round trip, {per_s:,.0f} requests/s "
        f"(medians of {len(results)} rounds)",
        is_met=ratio <= MOST_RATIO and per_s >= LEAST_PER_S,
        tables=(result.Table(title="Rounds", head=head, rows=rows),),
        figures={"rounds": results, "ratio": ratio, "per_s": per_s},
        packages=("uvloop",),
    )


def main() -> int:
    """Measure both in turn, and compare."""
    parser = argparse.ArgumentParser(description="Our load generator against wrk.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, per client and round")
    result.add_options(parser)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is not installed; on Debian: apt-get install wrk", file=sys.stderr)
        return 2
    return result.conclude(concluded(measure(options.rounds, options.seconds)), options)


if __name__ == "__main__":
    sys.exit(main())
