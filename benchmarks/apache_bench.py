"""100,000 requests from ApacheBench, none of which may fail.

One real image of the model's sample in the binary form of the Open Inference Protocol, 20
keep-alive connections, default settings. `ab` counts as failed what is not 2xx, what has another
length than the first answer, and what is lost.

    apt-get install apache2-utils
    python benchmarks/apache_bench.py [--write] [--json] [--requests 100000]

Ends with 1 when any request failed. Takes one to three minutes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import bodies
import numpy as np
import result
import server_process

from serving import zoo

MODEL = "resnet"
CONNECTIONS = 20
INFER = f"/v2/models/{MODEL}/infer"

FIGURES = {
    "complete": r"Complete requests:\s+(\d+)",
    "failed": r"Failed requests:\s+(\d+)",
    "non_2xx": r"Non-2xx responses:\s+(\d+)",
    "kept_alive": r"Keep-Alive requests:\s+(\d+)",
    "requests_per_s": r"Requests per second:\s+([\d.]+)",
    "p50_ms": r"\b50%\s+(\d+)",
    "p99_ms": r"\b99%\s+(\d+)",
    "longest_ms": r"100%\s+(\d+)",
}
"""Where `ab` prints what; `Non-2xx` has a line only when there are any."""


class WrongAnswer(Exception):
    """The model does not answer as it should; counting failures would mean nothing."""


def real_image(port: int) -> tuple[bodies.Body, int]:
    """One sample image as a request, and its label."""
    sample = zoo.find(MODEL).sample
    if sample is None:
        raise WrongAnswer(f"{MODEL} has no sample of real inputs")
    tensor = json.loads(server_process.request(port, "GET", f"/v2/models/{MODEL}")[2])["inputs"][0]
    with np.load(sample) as arrays:
        image = arrays[tensor["name"]][:1]
        label = int(arrays["labels"][0])
    return bodies.binary(tensor, image.shape, image.tobytes()), label


def check_answer(port: int, body: bodies.Body) -> int:
    """The class that the model gives the image."""
    status, headers, answer = server_process.request(port, "POST", INFER, body.data, body.headers)
    if status != 200:
        raise WrongAnswer(f"{INFER}: status {status}, {answer[:300]!r}")
    scores = np.frombuffer(bodies.output_bytes(headers, answer), dtype="<f4")
    return int(scores.argmax())


def bench(port: int, body: bodies.Body, requests: int) -> tuple[dict[str, float], str]:
    """Run `ab`; its figures, and all it said."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "body"
        file.write_bytes(body.data)
        length = f"{bodies.HEADER_LENGTH}: {body.headers[bodies.HEADER_LENGTH]}"
        done = subprocess.run(
            ["ab", "-q", "-k", "-c", str(CONNECTIONS), "-n", str(requests), "-p", str(file),
             "-T", "application/octet-stream", "-H", length, f"http://127.0.0.1:{port}{INFER}"],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    found = {name: re.search(pattern, said) for name, pattern in FIGURES.items()}
    return {name: float(match[1]) if match else 0.0 for name, match in found.items()}, said


def concluded(found: dict[str, float], requests: int, label: int, answer: int) -> result.Result:
    """Tables and verdict."""
    lost = requests - found["complete"]
    bad = found["failed"] + found["non_2xx"] + lost
    return result.Result(
        name="apache_bench",
        question=(
            f"Does every one of {requests:,} requests from ApacheBench succeed, at {CONNECTIONS} "
            f"keep-alive connections, with `{MODEL}` at its default settings?"
        ),
        target="no request fails",
        verdict=f"{bad:,.0f} of {requests:,} requests failed",
        is_met=bad == 0,
        tables=(
            result.Table(
                title="What `ab -k` counted",
                head=("figure", "value"),
                rows=[(name, f"{value:,.0f}") for name, value in found.items()],
            ),
        ),
        figures={**found, "requests": requests, "label": label, "answer": answer},
        packages=("onnxruntime",),
    )


def main() -> int:
    """Start, ask once, count."""
    parser = argparse.ArgumentParser(description="100,000 requests, none of which may fail")
    parser.add_argument("--requests", type=int, default=100_000, help="default 100000")
    result.add_options(parser)
    options = parser.parse_args()
    if shutil.which("ab") is None:
        print("ab is not installed; on Debian: apt-get install apache2-utils", file=sys.stderr)
        return 2
    with server_process.luthier(MODEL, {}) as port:
        body, label = real_image(port)
        answer = check_answer(port, body)
        found, said = bench(port, body, options.requests)
    if not found["complete"]:
        print(said, file=sys.stderr)
    return result.conclude(concluded(found, options.requests, label, answer), options)


if __name__ == "__main__":
    sys.exit(main())
