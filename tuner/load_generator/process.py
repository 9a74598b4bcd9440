"""Entry point of the client process: `python -m tuner.load_generator.process`.

It receives the frames {"do": "payloads", key, heads, sizes}, with the bodies and, for many models,
the order as the blob; {"do": "forget", key}; and {"do": "run", key, plan}. It sends the events
"ready", "stored", "running" each second, "done" with columns and CPU readings as the blob, and
"failed". One of several clients also sends "opened", once it is warm "warm", and once it has its
part of a minimum of answers "enough"; it begins, measures and ends at the moments that all are then
told: {"do": "begin", at_s}, {"do": "measure", at_s} and {"do": "end", at_s}.

The process ends with the channel, so it cannot outlive the tuner, and ignores Ctrl-C. It imports
little, to start quickly.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from serving.system.control_channel import Closed, ControlChannel
from tuner.load_generator.connections import ServerGone
from tuner.load_generator.plan import PhasePlan, Share
from tuner.load_generator.send_loop import Client

HEARTBEAT_S = 1.0


class StoredPayloads(NamedTuple):
    """Payloads as the tuner sent them."""

    heads: list[dict[str, Any]]
    bodies: list[bytes]
    order: bytes
    """Head and body indexes for requests to many models, otherwise empty."""


class LazyRequests(Sequence[bytes]):
    """Whole requests, built on access."""

    def __init__(self, heads: Sequence[bytes], bodies: Sequence[bytes], order: bytes) -> None:
        self._heads = heads
        self._bodies = bodies
        self._order = array("i", order)

    def __len__(self) -> int:
        return len(self._order) // 2

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        body = self._bodies[self._order[2 * place + 1]]
        return b"%b%d\r\n\r\n%b" % (self._heads[self._order[2 * place]], len(body), body)


class GeneratorProcess:
    """Loop that executes commands on stored payloads."""

    def __init__(self, tuner: ControlChannel) -> None:
        self._tuner = tuner
        self._stored: dict[int, StoredPayloads] = {}
        self._reported_s = 0.0

    def serve(self) -> None:
        """Execute commands until the tuner closes the channel."""
        with contextlib.suppress(Closed):
            self._tuner.send({"event": "ready", "pid": os.getpid()})
            while True:
                command, blob = self._tuner.receive()
                if command["do"] == "payloads":
                    self._store(command, blob)
                elif command["do"] == "forget":
                    self._stored.pop(command["key"], None)
                else:
                    self._run(PhasePlan.from_json(command["plan"]), self._stored[command["key"]])

    def _store(self, command: dict[str, Any], blob: bytes) -> None:
        bodies, start = [], 0
        for size in command["sizes"]:
            bodies.append(blob[start : start + size])
            start += size
        self._stored[command["key"]] = StoredPayloads(command["heads"], bodies, blob[start:])
        self._tuner.send({"event": "stored"})

    def _run(self, plan: PhasePlan, stored: StoredPayloads) -> None:
        begun_s = time.monotonic()
        requests = _requests(plan, stored)
        gc.collect()
        gc.disable()  # a collection would be measured as latency
        try:
            client = self._client(plan, requests)
            client.run()
        except ServerGone as error:
            self._tuner.send({"event": "failed", "reason": str(error)})
            return
        finally:
            gc.enable()
        summary = {
            "event": "done",
            "requests": len(client.columns),
            "cpu_readings": len(client.cpu_at_s),
            "first_error": client.first_error.decode(errors="replace"),
            "result": {
                "origin_s": client.origin_s,
                "warmup_end_s": client.phase.warmup_end_s,
                "measured_end_s": client.phase.measured_end_s,
                "client_cpu_s": client.cpu_s,
                "reconnects": client.pool.reconnects,
                "last_loss": client.pool.last_loss,
                "fell_behind": client.phase.fell_behind,
                "wall_s": time.monotonic() - begun_s,
            },
        }
        readings = client.cpu_at_s.tobytes() + client.cpu_used_s.tobytes()
        self._tuner.send(summary, client.columns.as_bytes() + readings)

    def _client(self, plan: PhasePlan, requests: Sequence[bytes]) -> Client:
        if plan.share is None:
            return Client(plan, requests, on_tick=self._tick)
        told: set[str] = set()

        def begin() -> float:
            self._tuner.send({"event": "opened"})
            command, _ = self._tuner.receive()
            at_s = float(command["at_s"])
            time.sleep(max(0.0, at_s - time.perf_counter()))
            return at_s

        def tick(finished: int) -> None:
            self._tick(finished)
            phase = client.phase
            reached = {"warm": phase.is_warm, "enough": phase.has_enough and plan.waits_for_answers}
            for event, is_reached in reached.items():
                if is_reached and event not in told:
                    told.add(event)
                    self._tuner.send({"event": event})
            for command in self._tuner.receive_all():
                at_s = command["at_s"] - client.origin_s
                if command["do"] == "measure":
                    phase.begins_s = at_s
                else:
                    phase.ends_s = at_s

        client = Client(plan, _dealt(plan.share, requests), on_tick=tick, on_open=begin)
        return client

    def _tick(self, finished: int) -> None:
        now = time.monotonic()
        if now - self._reported_s < HEARTBEAT_S / 4:
            return
        if self._tuner.has_ended():
            raise Closed
        if now - self._reported_s >= HEARTBEAT_S:
            self._reported_s = now
            self._tuner.send({"event": "running", "requests": finished})


def _requests(plan: PhasePlan, stored: StoredPayloads) -> Sequence[bytes]:
    if stored.order:
        begun = [_head(plan, head, "Content-Length: ") for head in stored.heads]
        return LazyRequests(begun, stored.bodies, stored.order)
    (head,) = stored.heads
    found = []
    for body in stored.bodies:
        has_length = body or not head["line"].startswith("GET ")
        length = f"Content-Length: {len(body)}\r\n" if has_length else ""
        found.append(_head(plan, head, f"{length}\r\n") + body)
    return found


def _dealt(share: Share, requests: Sequence[bytes]) -> Sequence[bytes]:
    """Return the requests in the order in which a client sends them, whose turn is every k-th."""
    count = len(requests)
    return [requests[(share.number + place * share.clients) % count] for place in range(count)]


def _head(plan: PhasePlan, head: dict[str, Any], end: str) -> bytes:
    lines = [head["line"]]
    if "host" not in {name.lower() for name, _ in head["headers"]}:
        host = f"[{plan.host}]" if ":" in plan.host else plan.host
        lines.append(f"Host: {host}" if plan.port == 80 else f"Host: {host}:{plan.port}")
    lines += [f"{name}: {value}" for name, value in head["headers"]]
    return ("\r\n".join([*lines, ""]) + end).encode("latin-1")


def main() -> None:
    """Serve the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    GeneratorProcess(ControlChannel.to_parent()).serve()


if __name__ == "__main__":
    main()
