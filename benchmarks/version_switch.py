"""Deploys, switches, rolls back and retires versions under load: no request may fail.

    python benchmarks/version_switch.py [--seconds 15] [--quick] [--write] [--json]

`resnet` is asked by 20 clients without a pause (closed loop). Each round deploys the next version beside the
one that serves, switches to it, rolls back, switches again, and retires the old one, through the admin
port. A client beside them notes which version answers, so that a switch that does nothing would show.

Ends with 1 when any request failed, or answers did not come from the version that was current. Takes
about twenty seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import open_loop
import probe
import result
import server_process

from tuner.traffic.generator import Generator, LoadResult
from tuner.traffic.plan import LoadPlan

CLIENTS = 20
TIMEOUT_S = 10.0
HOLD_S = 0.4
"""How long each version is left to serve."""
MODEL = "resnet"


class Switch(NamedTuple):
    """From `at_s` on (time.monotonic()) the version is to answer; the command took so long."""

    at_s: float
    what: str
    version: str
    took_s: float


class Operator(threading.Thread):
    """Changes versions, round after round."""

    def __init__(self, admin_port: int, seconds: float) -> None:
        super().__init__(name="operator")
        self._admin_port = admin_port
        self._until_s = time.monotonic() + seconds
        self.switches: list[Switch] = []
        self.deployed_s: list[float] = []
        self.refused: list[str] = []
        """Commands that the admin port did not obey."""

    def run(self) -> None:
        """Rounds until the time is over."""
        for number in itertools.count(1):
            if time.monotonic() >= self._until_s:
                return
            old, new = str(number), str(number + 1)
            deploy = {"model": MODEL, "version": new, "current": False}
            began_s = time.monotonic()
            self._command("POST", "", deploy)
            self.deployed_s.append(time.monotonic() - began_s)
            self._switch("switch", new, "PUT", "/current", {"version": new})
            self._switch("roll-back", old, "POST", "/rollback", {})
            self._switch("switch", new, "PUT", "/current", {"version": new})
            self._command("DELETE", f"/versions/{old}", {})

    def _switch(self, what: str, version: str, method: str, path: str, body: object) -> None:
        began_s = time.monotonic()
        self._command(method, path, body)
        now_s = time.monotonic()
        self.switches.append(Switch(now_s, what, version, now_s - began_s))
        time.sleep(HOLD_S)

    def _command(self, method: str, path: str, body: object) -> None:
        name = f"/{MODEL}" if path else ""
        status, _, said = server_process.request(
            self._admin_port, method, f"/admin/models{name}{path}", json.dumps(body).encode()
        )
        if status not in {200, 201}:
            self.refused.append(f"{method} {path}: {status} {said[:200]!r}")


def version_of(header: dict[str, Any], _tensors: bytes) -> str:
    """Who answered."""
    return str(header["model_version"])


def misplaced(switches: list[Switch], answers: list[probe.Answer]) -> int:
    """Answers of another version than the current one, more than one round trip after the switch.

    The probe's first answer after a switch may have been asked for before it.
    """
    count, turn = 0, 0
    current, is_first = "1", True
    for answer in answers:
        while turn < len(switches) and switches[turn].at_s <= answer.at_s:
            current, is_first = switches[turn].version, True
            turn += 1
        upcoming = switches[turn] if turn < len(switches) else None
        is_between = upcoming is not None and answer.at_s >= upcoming.at_s - upcoming.took_s
        if answer.said is not None and not is_first and not is_between:
            count += answer.said != current
        is_first = False
    return count


def measured(seconds: float) -> tuple[LoadResult, probe.Probe, Operator]:
    """Load and change, both at once."""
    with server_process.served(MODEL, {}) as where, Generator() as generator:
        sent = open_loop.images(where.port, MODEL)
        generator.set_payloads(sent)
        probed = probe.Probe(where.port, sent.path, sent.requests[0], sent.headers, read=version_of)
        with probed:
            operator = Operator(where.admin_port, seconds)
            operator.start()
            load = generator.run(
                LoadPlan(
                    host="127.0.0.1",
                    port=where.port,
                    concurrency=CLIENTS,
                    seconds=seconds,
                    timeout_s=TIMEOUT_S,
                )
            )
            operator.join(2 * TIMEOUT_S)
    return load, probed, operator


def concluded(load: LoadResult, probed: probe.Probe, operator: Operator) -> result.Result:
    """Table and verdict."""
    switches = operator.switches
    failed = int(np.count_nonzero(load.records.status != 200)) + probed.failed
    requests = len(load.records) + len(probed.answers)
    wrong = misplaced(switches, probed.answers)
    seen = len({answer.said for answer in probed.answers if answer.said is not None})
    took_ms = 1e3 * (load.records.finished_s - load.records.intended_s)
    rows = [
        ("requests", f"{requests:,}"),
        ("failed", f"{failed:,}"),
        ("switches", str(sum(switch.what == "switch" for switch in switches))),
        ("roll-backs", str(sum(switch.what == "roll-back" for switch in switches))),
        ("versions that answered", str(seen)),
        ("answers of a version that was not current", str(wrong)),
        ("commands refused", str(len(operator.refused))),
        ("deploying, median s", f"{statistics.median(operator.deployed_s):.2f}"),
        ("switching, median ms", f"{1e3 * statistics.median(s.took_s for s in switches):.1f}"),
        ("round trip p50 ms", f"{np.quantile(took_ms, 0.5):.1f}"),
        ("round trip p99 ms", f"{np.quantile(took_ms, 0.99):.1f}"),
        ("round trip longest ms", f"{took_ms.max():.0f}"),
    ]
    return result.Result(
        name="version_switch",
        question="Does a request fail while versions are deployed, switched, rolled back and retired?",
        target="no failed request, and every answer of the version that was current",
        verdict=f"{failed} of {requests:,} requests failed in {len(switches)} switches and roll-backs; "
        f"{wrong} answers of another version, {len(operator.refused)} commands refused",
        is_met=not failed and not wrong and not operator.refused and seen > 1,
        tables=(
            result.Table(title=f"`resnet`, {CLIENTS} clients", head=("what", "figure"), rows=rows),
        ),
        figures={
            "requests": requests,
            "failed": failed,
            "why_failed": load.why_failed,
            "misplaced": wrong,
            "switches": [switch._asdict() for switch in switches],
            "refused": operator.refused,
            "deployed_s": operator.deployed_s,
        },
        packages=("onnxruntime",),
    )


def main() -> int:
    """Switch, and count."""
    parser = argparse.ArgumentParser(description="switches of versions under load")
    parser.add_argument("--seconds", type=float, default=15.0, help="of load (default 15)")
    parser.add_argument("--quick", action="store_true", help="four seconds")
    result.add_options(parser)
    options = parser.parse_args()
    found = measured(4.0 if options.quick else options.seconds)
    return result.conclude(concluded(*found), options)


if __name__ == "__main__":
    sys.exit(main())
