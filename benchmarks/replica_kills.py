"""Kills a replica every second under load: no request may fail, and the next replica must come soon.

    python benchmarks/replica_kills.py [--seconds 30] [--quick] [--write] [--json]

Two replicas serve `resnet`; 20 clients ask without a pause (closed loop). Each second one replica in turn
gets SIGKILL. A client beside them asks for answers that name their replica, so that it sees when the
replacement gives its first good answer, counted from the kill.

Ends with 1 when any request failed or a replacement took more than 2 s. Takes half a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import struct
import sys
import threading
import time

import open_loop
import probe
import result
import server_process
import watched

REPLICAS = 2
PERIOD_S = 1.0
MOST_S = 2.0
MODEL = "named"


class Killer(threading.Thread):
    """Kills the replica that has served longest, once in a period."""

    def __init__(self, admin_port: int, seconds: float) -> None:
        super().__init__(name="killer")
        self._admin_port = admin_port
        self._seconds = seconds
        self.kills: list[tuple[float, int]] = []
        """When, on time.monotonic(), and which process."""
        self.skipped = 0
        """Periods in which no replica was ready: there was nothing to kill."""

    def run(self) -> None:
        """Until the time is over."""
        until_s = time.monotonic() + self._seconds
        due_s = time.monotonic() + PERIOD_S
        while due_s < until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            due_s += PERIOD_S
            ready = [row for row in replicas(self._admin_port) if row["state"] == "ready"]
            if not ready:
                self.skipped += 1
                continue
            pid = min(ready, key=lambda row: row["worker"])["pid"]
            self.kills.append((time.monotonic(), pid))
            os.kill(pid, signal.SIGKILL)


def replicas(admin_port: int) -> list[dict[str, object]]:
    """What the server says of its replicas."""
    _, _, answer = server_process.administer(admin_port, "GET", "/admin/replicas")
    found: list[dict[str, object]] = json.loads(answer)["replicas"]
    return found


def pid_of(_header: object, tensors: bytes) -> int:
    """The last output of an answer of one item."""
    found: int = struct.unpack("<q", tensors[-8:])[0]
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the clients and the killer saw."""

    seen: watched.Watched
    kills: list[tuple[float, int]]
    skipped: int

    def back_s(self) -> list[float | None]:
        """For each kill, seconds until the replacement's first good answer; None: it never came."""
        first_s: dict[int, float] = {}
        for answer in self.seen.probed.answers:
            if answer.said is not None:
                first_s.setdefault(answer.said, answer.at_s)
        new_s = sorted(first_s.values())[REPLICAS:]
        return [
            new_s[number] - at_s if number < len(new_s) else None
            for number, (at_s, _) in enumerate(self.kills)
        ]


def measured(seconds: float) -> Found:
    """Load, kill and look, all at once."""
    model = f"{open_loop.MODELS / 'named.py'}:Model"
    with server_process.served(model, {"replica.count": REPLICAS}) as where:
        killer = Killer(where.admin_port, seconds)
        seen = watched.watch(
            where,
            MODEL,
            killer,
            seconds=seconds + 2 * MOST_S,  # the last replacement is waited for, too
            read=pid_of,
            ready=_wait_for_all,
        )
    return Found(seen=seen, kills=killer.kills, skipped=killer.skipped)


def _wait_for_all(probed: probe.Probe) -> None:
    """Until the first replicas have been seen: those after them are replacements."""
    give_up_at_s = time.monotonic() + watched.TIMEOUT_S
    while len({answer.said for answer in probed.answers}) < REPLICAS:
        if time.monotonic() > give_up_at_s:
            raise server_process.ServerFailed("not every replica answers")
        time.sleep(0.01)


def concluded(found: Found) -> result.Result:
    """Table and verdict."""
    back_s = found.back_s()
    known_s = [second for second in back_s if second is not None]
    is_back = len(known_s) == len(back_s) > 0 and max(known_s) <= MOST_S
    requests, failed = found.seen.requests, found.seen.failed
    rows = [
        ("kills", str(len(found.kills))),
        ("periods without a replica to kill", str(found.skipped)),
        ("replacements that answered", str(len(known_s))),
        ("first good answer, median s", f"{statistics.median(known_s):.2f}" if known_s else "-"),
        ("first good answer, longest s", f"{max(known_s):.2f}" if known_s else "-"),
    ]
    longest = f"after at most {max(known_s):.2f} s" if known_s else "never"
    return result.Result(
        name="replica_kills",
        question=f"Does a request fail while one of {REPLICAS} replicas is killed (SIGKILL) every "
        f"{PERIOD_S:g} s, and when does its replacement answer?",
        target=f"no failed request; first good answer of the replacement within {MOST_S:g} s",
        verdict=f"{failed} of {requests:,} requests failed in {len(found.kills)} kills; "
        f"{len(known_s)} replacements answered, {longest}",
        is_met=not failed and is_back,
        tables=(found.seen.table(rows),),
        figures={
            "requests": requests,
            "failed": failed,
            "why_failed": found.seen.load.why_failed,
            "back_s": back_s,
            "kills": len(found.kills),
        },
        packages=("onnxruntime",),
    )


def main() -> int:
    """Kill, and count."""
    parser = argparse.ArgumentParser(description="kills of replicas under load")
    parser.add_argument("--seconds", type=float, default=30.0, help="of killing (default 30)")
    options = result.parsed(parser, seconds=5.0)
    return result.conclude(concluded(measured(options.seconds)), options)


if __name__ == "__main__":
    sys.exit(main())
