"""Takes away the store that two gateways share, amid feedback: none may be lost or count twice.

    apt-get install redis-server
    python benchmarks/store_losses.py [--feedbacks 10000] [--away 30] [--quick] [--write] [--json]

Two servers over one Redis serve an application of `echo` whose policy counts what it is told. Queries come at a
fixed rate (open loop), to both in turn; half of the feedback goes to the server that answered, half to the other
one, and is sent again as long as that answers 503. In the middle Redis is killed, and is started again after 30 s.
In the end both servers must have counted as much as there were queries.

Ends with 1 when a target is missed. Takes a minute and a half.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import aiohttp
import result
import server_process

APPLICATION = "told"
INPUT = "AQIDBA=="
EITHER_SIDE_S = 15.0
"""Time with Redis before it is killed, and after it is back."""
AGAIN_S = 0.25
"""Between attempts to tell what was answered by 503."""
PATIENCE_S = 60.0
TIMES = ("before", "away", "after")


@dataclasses.dataclass(slots=True, kw_only=True)
class Query:
    """A query, and what became of its feedback."""

    due_s: float
    took_s: float = 0.0
    status: int = 0
    refusals: int = 0
    """Times that the feedback got 503."""
    told: str = ""
    """The answer to the feedback."""


@contextlib.contextmanager
def redis(folder: pathlib.Path) -> Iterator[str]:
    """A Redis server that keeps what it was told in the folder; yields its address. Killed at the end."""
    path = folder / "redis.sock"
    words = ("--port", "0", "--unixsocket", str(path), "--dir", str(folder))
    with subprocess.Popen(
        ["redis-server", *words, "--save", "", "--appendonly", "yes"], stdout=subprocess.DEVNULL
    ) as server:
        try:
            yield f"unix://{path}"
        finally:
            server.kill()


async def one(session: aiohttp.ClientSession, query: Query, asked: int, told: int) -> None:
    """Ask, and tell until it is taken."""
    begun_s = time.monotonic()
    try:
        async with session.post(
            f"http://127.0.0.1:{asked}/{APPLICATION}/predict", json={"input": INPUT}
        ) as response:
            answer = await response.json(content_type=None)
            query.status = response.status if not answer.get("default") else 0
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return
    finally:
        query.took_s = time.monotonic() - begun_s
    feedback = {"uid": "", "input": INPUT, "label": "x", "query_id": answer["query_id"]}
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        async with session.post(
            f"http://127.0.0.1:{told}/{APPLICATION}/update", json=feedback
        ) as response:
            query.told = await response.text()
            if response.status != 503:
                return
        query.refusals += 1
        await asyncio.sleep(AGAIN_S)


async def load(ports: Sequence[int], feedbacks: int, seconds: float) -> list[Query]:
    """Queries at a fixed rate, each with its feedback."""
    begun_s = time.monotonic()
    queries = [Query(due_s=begun_s + seconds * at / feedbacks) for at in range(feedbacks)]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=10.0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as running,
    ):
        for at, query in enumerate(queries):
            await asyncio.sleep(max(0.0, query.due_s - time.monotonic()))
            asked, told = ports[at % 2], ports[at // 2 % 2]
            running.create_task(one(session, query, asked, told))
    return queries


async def lose(folder: pathlib.Path, away_s: float, closed: contextlib.ExitStack) -> list[float]:
    """Start Redis again after it was away; returns when it went, and when it was back."""
    await asyncio.sleep(EITHER_SIDE_S)
    closed.close()
    gone_s = time.monotonic()
    await asyncio.sleep(away_s)
    closed.enter_context(redis(folder))
    return [gone_s, time.monotonic()]


def count_feedbacks(admin_port: int) -> float:
    """Return how many feedbacks the policy of a server has counted."""
    body = json.dumps({"app_name": APPLICATION, "uid": ""}).encode()
    _, _, text = server_process.administer(admin_port, "POST", "/admin/get_state", body)
    return float(sum(json.loads(text)["state"]["counts"]))


def measured(feedbacks: int, away_s: float) -> tuple[list[Query], list[float], list[float]]:
    """All queries, when Redis went and came back, and what each server counted in the end."""
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.ExitStack() as closed,
        contextlib.ExitStack() as servers,
    ):
        folder = pathlib.Path(name)
        url = closed.enter_context(redis(folder))
        settings = {"server.state_store": url}
        both = [servers.enter_context(server_process.served("echo", settings)) for _ in range(2)]
        changes = {
            "add_app": {
                "name": APPLICATION,
                "input_type": "bytes",
                "default_output": "none",
                "latency_slo_micros": 5_000_000,
                "policy": "fixed",
            },
            "add_model_links": {"app_name": APPLICATION, "model_names": ["echo"]},
        }
        for path, body in changes.items():
            status, _, text = server_process.administer(
                both[0].admin_port, "POST", f"/admin/{path}", json.dumps(body).encode()
            )
            if status != 200:
                raise server_process.ServerFailed(text.decode())
        time.sleep(2.0)  # the other one follows

        async def play() -> tuple[list[Query], list[float]]:
            return await asyncio.gather(
                load([where.port for where in both], feedbacks, away_s + 2 * EITHER_SIDE_S),
                lose(folder, away_s, closed),
            )

        queries, times = asyncio.run(play())
        time.sleep(2.0)  # the last rounds of the exchange
        return queries, times, [count_feedbacks(where.admin_port) for where in both]


def concluded(
    queries: Sequence[Query], times: Sequence[float], counts: Sequence[float], away_s: float
) -> result.Result:
    """Table and verdict."""
    rows = []
    for at, name in enumerate(TIMES):
        own = [query for query in queries if sum(query.due_s >= s for s in times) == at]
        took_ms = [1e3 * query.took_s for query in own if query.status == 200]
        failed = len(own) - len(took_ms)
        later = sum(query.refusals > 0 for query in own)
        rows.append(
            (
                name,
                f"{len(own):,}",
                f"{failed}",
                f"{statistics.median(took_ms):.1f}",
                f"{max(took_ms):.0f}",
                f"{later:,}",
            )
        )
    failed = sum(query.status != 200 for query in queries)
    taken = sum(query.told == "Feedback received? 1" for query in queries)
    return result.Result(
        name="store_losses",
        question=f"Is feedback lost, or counted twice, while the Redis of two gateways is away for {away_s:g} s?",
        target="all feedback is taken, and both gateways count each one once; no query fails",
        verdict=f"{failed} of {len(queries):,} queries failed, {taken:,} feedbacks were taken, "
        + " and ".join(f"{count:,.0f}" for count in counts)
        + " counted",
        is_met=not failed and {float(taken), *counts} == {float(len(queries))},
        tables=(
            result.Table(
                title="Queries by when they were due",
                head=("Redis", "queries", "failed", "median ms", "longest ms", "feedback got 503"),
                rows=rows,
            ),
        ),
        figures={"queries": len(queries), "failed": failed, "taken": taken, "counted": counts},
        packages=("redis",),
        notes=(
            "503 answers feedback on the other gateway's decisions while Redis is away: it is sent again.",
        ),
    )


def main() -> int:
    """Take the store away, and count."""
    parser = argparse.ArgumentParser(description="the store of two gateways goes away")
    parser.add_argument("--feedbacks", type=int, default=10_000, help="default 10,000")
    parser.add_argument("--away", type=float, default=30.0, help="seconds (default 30)")
    options = result.parsed(parser, feedbacks=1000, away=4.0)
    found = measured(options.feedbacks, options.away)
    return result.conclude(concluded(*found, options.away), options)


if __name__ == "__main__":
    sys.exit(main())
