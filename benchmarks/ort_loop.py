"""A bare ONNX Runtime loop: what the machine's cores can do with a model when nothing is served.

    python benchmarks/ort_loop.py [--processes 2] [--threads 1] [--batch 8] [--seconds 2]

Each process runs the zoo's `resnet` on one batch of real images again and again, all of them over the
same seconds. Prints one JSON object: images per second, and percentiles of the time of a batch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from serving import zoo

START_TIMEOUT_S = 60.0


def run(
    threads: int,
    batch: int,
    seconds: float,
    together: multiprocessing.synchronize.Barrier,
    tell: Callable[[tuple[float, list[float]]], None],
) -> None:
    """One process: tells its images per second and the seconds of each batch."""
    card = zoo.find("resnet")
    assert card.path is not None
    assert card.sample is not None
    with np.load(card.sample) as arrays:
        images = np.ascontiguousarray(arrays["image"][:batch])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(card.path), options, providers=["CPUExecutionProvider"]
    )
    for _ in range(10):
        session.run(None, {"image": images})
    together.wait(START_TIMEOUT_S)
    times = [time.perf_counter()]
    while times[-1] - times[0] < seconds:
        session.run(None, {"image": images})
        times.append(time.perf_counter())
    rate = (len(times) - 1) * batch / (times[-1] - times[0])
    tell((rate, np.diff(times).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description="A bare ONNX Runtime loop over the zoo's resnet.")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    parser.add_argument("--threads", type=int, default=1, help="inside an operator (default 1)")
    parser.add_argument("--batch", type=int, default=8, help="images per call (default 8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="default 2")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(options.processes)
    told = context.SimpleQueue()
    workers = [
        context.Process(
            target=run,
            args=(options.threads, options.batch, options.seconds, together, told.put),
        )
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(START_TIMEOUT_S + options.seconds)
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process of the loop failed; what it said stands above")
    found = [told.get() for _ in workers]
    rate = sum(each for each, _ in found)
    p50_s, p99_s = np.percentile([batch_s for _, times in found for batch_s in times], (50, 99))
    print(json.dumps({"images_per_s": rate, "p50_ms": 1e3 * p50_s, "p99_ms": 1e3 * p99_s}))


if __name__ == "__main__":
    main()
