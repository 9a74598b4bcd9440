"""Median latency at 20 busy connections, alone and beside 980 that are open and idle.

    apt-get install wrk
    python benchmarks/idle_connections.py [--rounds 8] [--quick] [--write] [--json]

`echo` answers 3 KB on 20 keep-alive connections of `wrk`, in rounds that take turns: alone, and while 980
other connections are open that had one answer each and ask no more. After each of their rounds every idle
connection must give a second answer: a server that had hung up on them would pass for free.

Ends with 1 when the rounds do not show that it is at most 1.2 x (the 95 % interval of their mean ratio), or an
idle connection was lost. Takes a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import sys
from collections.abc import Iterator

import bodies
import result
import server_process
import wrk

from tuner.measurement.comparison import ratio_interval

ACTIVE = 20
OPEN = 1000
MOST_RATIO = 1.2
PAYLOAD_BYTES = 3072
INFER = "/v2/models/echo/infer"


def body_for(port: int) -> bodies.Body:
    """3 KB for `echo`, in binary form."""
    _, _, answer = server_process.request(port, "GET", "/v2/models/echo")
    tensor = json.loads(answer)["inputs"][0]
    payload = os.urandom(PAYLOAD_BYTES)
    return bodies.binary(tensor, bodies.filled_shape(tensor, payload), payload)


def ask(connection: http.client.HTTPConnection, body: bodies.Body) -> None:
    """One good answer on a connection that stays open.

    Raises:
        wrk.WrongAnswers: it was another answer, or none.
    """
    try:
        connection.request("POST", INFER, body.data, body.headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException) as error:
        raise wrk.WrongAnswers(f"an idle connection was lost: {error!r}") from error
    if response.status != http.client.OK or response.will_close:
        raise wrk.WrongAnswers(f"an idle connection was answered {response.status}")


@contextlib.contextmanager
def idle(port: int, body: bodies.Body) -> Iterator[None]:
    """So many open connections, each with one answer behind it and one after the block."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(OPEN - ACTIVE):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            stack.callback(connection.close)
            connection.auto_open = 0  # a lost one must not be opened again unseen
            connection.connect()
            ask(connection, body)
            connections.append(connection)
        yield
        for connection in connections:
            ask(connection, body)


def measured(rounds: int, seconds: int) -> list[tuple[wrk.Load, wrk.Load]]:
    """Rounds of (alone, beside idle ones); who goes first changes from round to round."""
    found = []
    with server_process.luthier("echo", {}) as port:
        body = body_for(port)

        def alone() -> wrk.Load:
            return wrk.drive(
                port,
                INFER,
                body=body.data,
                headers=body.headers,
                connections=ACTIVE,
                seconds=seconds,
            )

        def beside() -> wrk.Load:
            with idle(port, body):
                return alone()

        alone()  # warm
        for number in range(rounds):
            if number % 2 == 0:
                pair = (alone(), beside())
            else:
                crowded = beside()
                pair = (alone(), crowded)
            found.append(pair)
            result.say(f"round {number + 1}: ratio {pair[1].p50_ms / pair[0].p50_ms:.3f}")
    return found


def concluded(rounds: list[tuple[wrk.Load, wrk.Load]]) -> result.Result:
    """Table and verdict."""
    ratios = [crowded.p50_ms / alone.p50_ms for alone, crowded in rounds]
    mean, interval = ratio_interval(*([pair[at].p50_ms for pair in rounds] for at in (1, 0)))
    assert interval.high is not None
    return result.Result(
        name="idle_connections",
        question=f"What do {OPEN - ACTIVE} open, idle connections cost {ACTIVE} busy ones?",
        target=f"median latency at most {MOST_RATIO} x that of {ACTIVE} connections alone, by the 95 % interval",
        verdict=f"{mean:.2f} x [{interval.low:.2f}, {interval.high:.2f}] over {len(rounds)} rounds; "
        "no idle connection was lost",
        is_met=interval.high <= MOST_RATIO,
        tables=(
            result.Table(
                title=f"`echo`, {PAYLOAD_BYTES} bytes each way",
                head=(
                    "round",
                    "alone p50 ms",
                    "beside idle p50 ms",
                    "ratio",
                    "alone /s",
                    "beside idle /s",
                ),
                rows=[
                    (
                        str(number),
                        f"{alone.p50_ms:.3f}",
                        f"{crowded.p50_ms:.3f}",
                        f"{value:.3f}",
                        f"{alone.requests_per_s:,.0f}",
                        f"{crowded.requests_per_s:,.0f}",
                    )
                    for number, ((alone, crowded), value) in enumerate(
                        zip(rounds, ratios, strict=True), 1
                    )
                ],
            ),
        ),
        figures={
            "ratio": mean,
            "interval": dataclasses.asdict(interval),
            "ratios": ratios,
            "rounds": [[dataclasses.asdict(load) for load in pair] for pair in rounds],
        },
        needs=("apt-get install wrk",),
    )


def main() -> int:
    """Measure both in turn, and compare."""
    parser = argparse.ArgumentParser(description="the cost of idle connections")
    parser.add_argument("--rounds", type=int, default=8, help="of both (default 8)")
    parser.add_argument("--seconds", type=int, default=3, help="of one measurement (default 3)")
    options = result.parsed(parser, rounds=2, seconds=1)
    if problem := wrk.is_missing():
        result.say(problem)
        return 2
    try:
        rounds = measured(options.rounds, options.seconds)
    except wrk.WrongAnswers as error:
        result.say(str(error))
        return 1
    return result.conclude(concluded(rounds), options)


if __name__ == "__main__":
    sys.exit(main())
