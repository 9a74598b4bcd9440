"""Requests per second of the serving core against mosec, whose HTTP side is written in Rust.

Both serve "nothing": 3 KB of bytes in, the same bytes out, one worker process, 20 keep-alive
connections from `wrk`. So the figure is what a server costs, not what a model costs. Each side runs
at the best of a small sweep of its own batching settings; then the two are measured in alternating
rounds on fresh starts, and the figure is the median of the rounds' ratios.

    apt-get install wrk
    pip install -r benchmarks/requirements.txt
    python benchmarks/serving_core.py [--write] [--json] [--form raw]

Ends with 1 when the target is missed or any answer was wrong. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator

import bodies
import result
import server_process
import wrk

TARGET = 0.8
CONNECTIONS = 20
PAYLOAD_BYTES = 3072
INFER = "/v2/models/echo/infer"

OUR_SIZES = (1, 8, 16, 20, 32)
OUR_TIMEOUTS_US = (0, 200, 1000)
PEER_SIZES = (8, 16, 20, 32)
PEER_WAITS_MS = (1, 2, 5, 10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One server at one setting: how to start it, and the request it answers."""

    name: str
    setting: str
    path: str
    start: Callable[[], contextlib.AbstractContextManager[int]]


def ours() -> list[Candidate]:
    """The sweep of our batching settings; a wait means nothing to a batch of one."""
    pairs = [(1, 0), *itertools.product(OUR_SIZES[1:], OUR_TIMEOUTS_US)]
    return [
        Candidate(
            name="luthier",
            setting=f"max_size {size}, timeout_us {timeout}",
            path=INFER,
            start=functools.partial(
                server_process.luthier,
                "echo",
                {"batching.max_size": size, "batching.timeout_us": timeout},
            ),
        )
        for size, timeout in pairs
    ]


def peers() -> list[Candidate]:
    """The sweep of mosec's batching settings."""
    pairs = [(1, 1), *itertools.product(PEER_SIZES, PEER_WAITS_MS)]
    return [
        Candidate(
            name="mosec",
            setting=f"max_batch_size {size}, max_wait_time {wait} ms",
            path="/inference",
            start=functools.partial(server_process.mosec_echo, size, wait),
        )
        for size, wait in pairs
    ]


def body_for(candidate: Candidate, port: int, form: str) -> bodies.Body:
    """The 3 KB as this server wants them, after one request whose answer is compared."""
    payload = os.urandom(PAYLOAD_BYTES)
    if candidate.name == "mosec":
        body = bodies.raw(payload)
    else:
        status, _, answer = server_process.request(port, "GET", "/v2/models/echo")
        if status != 200:
            raise wrk.WrongAnswers(f"metadata of echo: status {status}, {answer!r}")
        tensor = json.loads(answer)["inputs"][0]
        shape = bodies.filled_shape(tensor, payload)
        body = bodies.raw(payload) if form == "raw" else bodies.binary(tensor, shape, payload)
    status, headers, answer = server_process.request(
        port, "POST", candidate.path, body.data, body.headers
    )
    returned = answer if candidate.name == "mosec" else bodies.output_bytes(headers, answer)
    if status != 200 or returned != payload:
        raise wrk.WrongAnswers(
            f"{candidate.name} did not return the bytes: {status}, {answer[:200]!r}"
        )
    return body


@contextlib.contextmanager
def warm(candidate: Candidate, form: str) -> Iterator[Callable[[int], wrk.Load]]:
    """A started and warmed server; yields what loads it for some seconds."""
    with candidate.start() as port:
        body = body_for(candidate, port, form)

        def load(seconds: int) -> wrk.Load:
            return wrk.drive(
                port,
                candidate.path,
                body=body.data,
                headers=body.headers,
                connections=CONNECTIONS,
                seconds=seconds,
            )

        load(1)
        yield load


def sweep(candidates: list[Candidate], form: str, seconds: int) -> list[tuple[Candidate, wrk.Load]]:
    """Every candidate once, best first."""
    found = []
    for candidate in candidates:
        with warm(candidate, form) as load:
            found.append((candidate, load(seconds)))
        _say(f"{candidate.name} {candidate.setting}: {found[-1][1].requests_per_s:,.0f} requests/s")
    return sorted(found, key=lambda pair: -pair[1].requests_per_s)


def alternate(
    mine: Candidate, peer: Candidate, options: argparse.Namespace
) -> list[tuple[wrk.Load, wrk.Load]]:
    """Rounds of (ours, peer) on fresh starts; who goes first changes from round to round."""
    rounds = []
    for number in range(options.starts):
        with warm(mine, options.form) as load_mine, warm(peer, options.form) as load_peer:
            for turn in range(options.rounds):
                if (number + turn) % 2 == 0:
                    ours_now, peer_now = load_mine(options.seconds), load_peer(options.seconds)
                else:
                    peer_now, ours_now = load_peer(options.seconds), load_mine(options.seconds)
                rounds.append((ours_now, peer_now))
                ratio = ours_now.requests_per_s / peer_now.requests_per_s
                _say(f"start {number + 1}, round {turn + 1}: ratio {ratio:.3f}")
    return rounds


def concluded(
    swept: list[tuple[Candidate, wrk.Load]],
    best: tuple[Candidate, Candidate],
    rounds: list[tuple[wrk.Load, wrk.Load]],
    form: str,
) -> result.Result:
    """Tables and verdict."""
    ratios = [mine.requests_per_s / peer.requests_per_s for mine, peer in rounds]
    ratio = statistics.median(ratios)
    columns = [[pair[side] for pair in rounds] for side in (0, 1)]
    summary = [
        (
            candidate.name,
            candidate.setting,
            f"{statistics.median(load.requests_per_s for load in loads):,.0f}",
            f"{statistics.median(load.p50_ms for load in loads):.2f}",
            f"{statistics.median(load.p99_ms for load in loads):.2f}",
        )
        for candidate, loads in zip(best, columns, strict=True)
    ]
    each = [
        (
            str(number),
            f"{mine.requests_per_s:,.0f}",
            f"{peer.requests_per_s:,.0f}",
            f"{value:.3f}",
        )
        for number, ((mine, peer), value) in enumerate(zip(rounds, ratios, strict=True), 1)
    ]
    tried = [
        (candidate.name, candidate.setting, f"{load.requests_per_s:,.0f}", f"{load.p50_ms:.2f}")
        for candidate, load in swept
    ]
    return result.Result(
        name="serving_core",
        question=(
            f"How many requests per second does one replica of `echo` answer, "
            f"{PAYLOAD_BYTES} bytes each way ({form} form), at {CONNECTIONS} connections?"
        ),
        target=f"at least {TARGET} x the requests/s of mosec at its best settings",
        verdict=(
            f"{ratio:.2f} x mosec (rounds from {min(ratios):.2f} to {max(ratios):.2f}, "
            f"{len(rounds)} rounds)"
        ),
        is_met=ratio >= TARGET,
        tables=(
            result.Table(
                title="Medians of the rounds",
                head=("server", "best setting", "requests/s", "p50 ms", "p99 ms"),
                rows=summary,
            ),
            result.Table(
                title="Rounds", head=("round", "luthier /s", "mosec /s", "ratio"), rows=each
            ),
            result.Table(
                title="Sweep of settings, one short run each",
                head=("server", "setting", "requests/s", "p50 ms"),
                rows=tried,
            ),
        ),
        figures={
            "ratio": ratio,
            "ratios": ratios,
            "form": form,
            "best": {candidate.name: candidate.setting for candidate in best},
            "rounds": [[dataclasses.asdict(load) for load in pair] for pair in rounds],
            "sweep": [[c.name, c.setting, dataclasses.asdict(load)] for c, load in swept],
        },
        packages=("mosec",),
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Sweep, alternate, conclude."""
    parser = argparse.ArgumentParser(description="requests per second against mosec")
    parser.add_argument("--form", choices=("binary", "raw"), default="binary", help="OIP body form")
    parser.add_argument("--starts", type=int, default=3, help="fresh starts of both (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per start (default 3)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a round (default 4)")
    parser.add_argument("--sweep-seconds", type=int, default=2, help="per setting (default 2)")
    result.add_options(parser)
    options = parser.parse_args()
    if problem := wrk.is_missing():
        _say(problem)
        return 2
    mine = sweep(ours(), options.form, options.sweep_seconds)
    theirs = sweep(peers(), options.form, options.sweep_seconds)
    best = (mine[0][0], theirs[0][0])
    rounds = alternate(*best, options)
    return result.conclude(concluded(mine + theirs, best, rounds, options.form), options)


if __name__ == "__main__":
    sys.exit(main())
