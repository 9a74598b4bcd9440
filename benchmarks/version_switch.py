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

import probe
import result
import server_process
import watched

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
        self._seconds = seconds
        self.switches: list[Switch] = []
        self.deployed_s: list[float] = []
        self.refused: list[str] = []
        """Commands that the admin port did not obey."""

    def run(self) -> None:
        """Rounds until the time is over."""
        until_s = time.monotonic() + self._seconds
        for number in itertools.count(1):
            if time.monotonic() >= until_s:
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
        status, _, said = server_process.administer(
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


def measured(seconds: float) -> tuple[watched.Watched, Operator]:
    """Load and change, both at once."""
    with server_process.served(MODEL, {}) as where:
        operator = Operator(where.admin_port, seconds)
        seen = watched.watch(where, MODEL, operator, seconds=seconds, read=version_of)
    return seen, operator


def concluded(seen: watched.Watched, operator: Operator) -> result.Result:
    """Table and verdict."""
    switches = operator.switches
    requests, failed, answers = seen.requests, seen.failed, seen.probed.answers
    wrong = misplaced(switches, answers)
    versions = len({answer.said for answer in answers if answer.said is not None})
    rows = [
        ("switches", str(sum(switch.what == "switch" for switch in switches))),
        ("roll-backs", str(sum(switch.what == "roll-back" for switch in switches))),
        ("versions that answered", str(versions)),
        ("answers of a version that was not current", str(wrong)),
        ("commands refused", str(len(operator.refused))),
        ("deploying, median s", f"{statistics.median(operator.deployed_s):.2f}"),
        ("switching, median ms", f"{1e3 * statistics.median(s.took_s for s in switches):.1f}"),
    ]
    return result.Result(
        name="version_switch",
        question="Does a request fail while versions are deployed, switched, rolled back and retired?",
        target="no failed request, and every answer of the version that was current",
        verdict=f"{failed} of {requests:,} requests failed in {len(switches)} switches and roll-backs; "
        f"{wrong} answers of another version, {len(operator.refused)} commands refused",
        is_met=not failed and not wrong and not operator.refused and versions > 1,
        tables=(seen.table(rows),),
        figures={
            "requests": requests,
            "failed": failed,
            "why_failed": seen.load.why_failed,
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
    options = result.parsed(parser, seconds=4.0)
    return result.conclude(concluded(*measured(options.seconds)), options)


if __name__ == "__main__":
    sys.exit(main())
