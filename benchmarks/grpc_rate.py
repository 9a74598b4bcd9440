"""Requests per second of the Open Inference Protocol over gRPC: 3 KB, 20 at a time, one replica.

The setting is that of `serving_core.py`, the client is `h2load`, which sends one recorded
`ModelInfer` again and again: a gRPC client in Python takes more of the two cores than the server. The
20 requests come over 20 connections, and over one connection as 20 streams; both must reach the
target. A real client of `grpcio` compares an answer before and after each run.

    apt-get install nghttp2-client
    pip install 'tritonclient[grpc]'
    python benchmarks/grpc_rate.py [--write] [--json] [--quick]

Ends with 1 when the target is missed or any answer was wrong. Takes about one and a half minutes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys

import candidates
import grpc
import h2load
import result
import server_process
import wrk
from tritonclient.grpc import service_pb2, service_pb2_grpc

TARGET = 3000
METHOD = "inference.GRPCInferenceService/ModelInfer"
SHAPES = {"20 connections": (20, 1), "1 connection, 20 streams": (1, 20)}
"""Name -> connections, and streams of each."""
SIZES = (8, 16, 20)
TIMEOUTS_US = (0, 200)
CALL_TIMEOUT_S = 5.0


def recorded(payload: bytes) -> service_pb2.ModelInferRequest:
    """The request: one tensor of bytes."""
    message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[payload])
    message.inputs.add(name="data", datatype="UINT8", shape=[1, len(payload)])
    return message


def ask(port: int, message: service_pb2.ModelInferRequest) -> int:
    """One real call, whose answer must be the payload; the length of the answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(message, timeout=CALL_TIMEOUT_S)
    if list(answer.raw_output_contents) != list(message.raw_input_contents):
        raise wrk.WrongAnswers("the answer over gRPC is not the payload")
    return int(answer.ByteSize())


def drive(
    port: int, message: service_pb2.ModelInferRequest, shape: str, seconds: int
) -> tuple[float, float]:
    """One run, between two real calls: requests per second, mean ms."""
    answer_bytes = ask(port, message)
    connections, streams = SHAPES[shape]
    found = h2load.drive(
        port,
        METHOD,
        message.SerializeToString(),
        answer_bytes=answer_bytes,
        connections=connections,
        streams=streams,
        seconds=seconds,
    )
    ask(port, message)
    return found


def main() -> int:
    """Sweep, then both ways in turn at the best setting."""
    parser = argparse.ArgumentParser(description="requests per second over gRPC")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=int, default=4, help="length of a run (default 4)")
    options = result.parsed(parser, rounds=1, seconds=1)
    if problem := h2load.is_missing():
        parser.error(problem)
    message = recorded(os.urandom(candidates.PAYLOAD_BYTES))
    pairs = [(1, 0), *itertools.product(SIZES, TIMEOUTS_US)][: 2 if options.quick else None]
    swept = []
    for size, timeout in pairs:
        settings = {"batching.max_size": size, "batching.timeout_us": timeout}
        with server_process.served("echo", {**settings, "server.grpc_port": 0}) as where:
            drive(where.grpc_port, message, "20 connections", 1)
            rate, mean_ms = drive(where.grpc_port, message, "20 connections", 2)
        swept.append((rate, mean_ms, settings))
        result.say(f"{settings}: {rate:,.0f} requests/s")
    swept.sort(key=lambda row: -row[0])
    best = swept[0][2]
    runs: dict[str, list[tuple[float, float]]] = {shape: [] for shape in SHAPES}
    with server_process.served("echo", {**best, "server.grpc_port": 0}) as where:
        drive(where.grpc_port, message, "20 connections", 1)
        for _ in range(options.rounds):
            for shape, found in runs.items():
                found.append(drive(where.grpc_port, message, shape, options.seconds))
    rates = {shape: statistics.median(rate for rate, _ in found) for shape, found in runs.items()}
    return result.conclude(concluded(swept, runs, rates), options)


def concluded(
    swept: list[tuple[float, float, dict[str, int]]],
    runs: dict[str, list[tuple[float, float]]],
    rates: dict[str, float],
) -> result.Result:
    """Tables and verdict."""
    best = candidates.text(swept[0][2])
    return result.Result(
        name="grpc_rate",
        question=(
            f"How many ModelInfer calls per second does one replica of `echo` answer, "
            f"{candidates.PAYLOAD_BYTES} bytes each way, {candidates.CONNECTIONS} at a time?"
        ),
        target=f"at least {TARGET:,} requests/s",
        verdict=", ".join(f"{rate:,.0f} /s over {shape}" for shape, rate in rates.items()),
        is_met=min(rates.values()) >= TARGET,
        tables=(
            result.Table(
                title=f"At the best setting ({best}), medians of the runs",
                head=("20 requests at a time over", "requests/s", "from", "to", "mean ms", "runs"),
                rows=[
                    (
                        shape,
                        f"{rates[shape]:,.0f}",
                        f"{min(found)[0]:,.0f}",
                        f"{max(found)[0]:,.0f}",
                        f"{statistics.median(mean for _, mean in found):.2f}",
                        str(len(found)),
                    )
                    for shape, found in runs.items()
                ],
            ),
            result.Table(
                title="Sweep of settings over 20 connections, one short run each",
                head=("setting", "requests/s", "mean ms"),
                rows=[
                    (candidates.text(settings), f"{rate:,.0f}", f"{mean:.2f}")
                    for rate, mean, settings in swept
                ],
            ),
        ),
        figures={"rates": rates, "runs": runs, "sweep": swept},
        packages=("grpcio", "tritonclient"),
        needs=("apt-get install nghttp2-client",),
    )


if __name__ == "__main__":
    sys.exit(main())
