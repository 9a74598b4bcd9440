"""What holds after every stage, whatever it did: O1 to O6 of the campaign as one function. Pure.

In: what was there before and after, what the observer saw, what the log says, and what the stage allows.
Out: a sentence for everything that was not as promised.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from tests.abuse.observer import Seen
from tests.abuse.stage import Allowance
from tests.abuse.subject import Holding

READY_S = 2.0
WORST_MS = 250.0
P99_MS = 50.0
"""Both are over what the null server beside it took."""
GROWTH_MIB = 64.0
SETTLE_S = 10.0
LOG_BYTES = 1_000_000
_OVERLOADED = {429, 503}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known when a stage has ended."""

    is_alive: bool
    ready_s: float | None
    """How long it took to be ready; None: it was not within `READY_S`."""
    before: Holding
    after: Holding
    """When it had settled, or `SETTLE_S` later."""
    peak_mib: float
    seen: Mapping[str, Seen]
    log: str
    log_bytes: int
    memory_kills: int = 0
    """Processes that the kernel killed for memory."""


def broken(evidence: Evidence, allowance: Allowance) -> list[str]:
    """Every promise that was not kept, as a sentence that begins with its oracle."""
    found = _alive(evidence)
    if not allowance.stops_gateway:
        found += _observed(evidence.seen, allowance)
    found += _memory(evidence, allowance)
    left = evidence.after.over(evidence.before)
    if left:
        found.append(f"O4 left behind after {SETTLE_S:g} s: {left}")
    found += _log(evidence, allowance)
    if not allowance.stops_gateway:
        unanswered = sum(evidence.seen[kind].statuses[0] for kind in _asked(evidence.seen))
        if unanswered:
            found.append(f"O6 {unanswered} requests of the observer were not answered")
    return found


def _asked(seen: Mapping[str, Seen]) -> list[str]:
    return [kind for kind in ("health", "echo") if kind in seen]


def _alive(evidence: Evidence) -> list[str]:
    if not evidence.is_alive:
        return ["O1 the gateway has ended"]
    if evidence.ready_s is None:
        return [f"O1 not ready within {READY_S:g} s"]
    return []


def _observed(seen: Mapping[str, Seen], allowance: Allowance) -> list[str]:
    null = seen.get("null", Seen())
    found = []
    for kind in ("health", "echo"):
        if kind not in seen:
            found.append(f"O2 the observer got no answer for {kind}")
            continue
        one = seen[kind]
        if one.worst_ms - null.worst_ms > WORST_MS:
            found.append(
                f"O2 {kind} took {one.worst_ms:.0f} ms at worst, the null server {null.worst_ms:.0f}"
            )
        if one.p99_ms - null.p99_ms > P99_MS:
            found.append(
                f"O2 {kind} took {one.p99_ms:.0f} ms in p99, the null server {null.p99_ms:.0f}"
            )
        allowed = {200, 0} | (_OVERLOADED if allowance.is_overload else set())
        odd = {status: count for status, count in one.statuses.items() if status not in allowed}
        if odd:
            found.append(f"O2 {kind} was answered {odd}")
    return found


def _memory(evidence: Evidence, allowance: Allowance) -> list[str]:
    found = []
    growth = evidence.after.memory_mib - evidence.before.memory_mib
    if growth > GROWTH_MIB:
        found.append(f"O3 {growth:.0f} MiB more than before")
    peak = evidence.peak_mib - evidence.before.memory_mib
    if peak > allowance.peak_mib:
        found.append(f"O3 {peak:.0f} MiB more at the worst moment, allowed {allowance.peak_mib:g}")
    if evidence.memory_kills:
        found.append(f"O3 {evidence.memory_kills} processes were killed for memory")
    return found


def _log(evidence: Evidence, allowance: Allowance) -> list[str]:
    found = []
    if not allowance.tracebacks:
        errors = re.findall(r"Traceback \(most recent call last\)", evidence.log)
        if errors:
            kinds = set(re.findall(r"(?:^|\\n)(\w+(?:\.\w+)*(?:Error|Exception)): ", evidence.log))
            found.append(
                f"O5 {len(errors)} tracebacks in the log: {', '.join(sorted(kinds)) or '?'}"
            )
    if evidence.log_bytes > LOG_BYTES:
        found.append(f"O5 {evidence.log_bytes} bytes of log")
    return found
