"""How a replica ended, whatever it was: a process of this machine, or a container."""

from __future__ import annotations

import dataclasses
import signal
from typing import Literal

from serving.replica.child import (
    EXIT_NO_GATEWAY,
    EXIT_NO_PROGRAM,
    EXIT_NOT_LIMITED,
    EXIT_NOT_MADE,
)

_EXITS = {
    EXIT_NO_GATEWAY: "it could not connect to the gateway",
    EXIT_NO_PROGRAM: "its program cannot be started; its error output has the reason",
    EXIT_NOT_LIMITED: "it could not join its control groups",
    EXIT_NOT_MADE: "the kernel refused to make the process; its error output has the reason",
}
_SIGNALS = frozenset(signal.Signals)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a replica ended.

    oom: the kernel killed it for memory. killed: by SIGKILL, ours or another's. crash: by another
    signal or with an error code. exit: in order, after its socket was closed.
    """

    reason: Literal["oom", "crash", "killed", "exit"]
    text: str


def by_code(code: int, said: str = "") -> Ended:
    """Of a replica that ended with an exit code; `said`: the last line that it wrote, where it is known."""
    if not code:
        return Ended(reason="exit", text="exited in order")
    why = _EXITS.get(code) or (
        f"it said last: {said}" if said else "its error output has the reason"
    )
    return Ended(reason="crash", text=f"exited with code {code}: {why}")


def by_signal(number: int, *, oom: str | None, asked: bool) -> Ended:
    """Of a replica that a signal ended.

    Args:
        number: the signal.
        oom: facts of its memory if the kernel killed it for that, None if not.
        asked: whether the gateway had asked for its end.
    """
    name = f"signal {number}"
    if number in _SIGNALS:  # most real-time signals have no name
        name += f" ({signal.Signals(number).name})"
    if number != signal.SIGKILL:
        return Ended(reason="crash", text=f"ended by {name}")
    if oom is not None:  # also when we killed what was dead
        return Ended(reason="oom", text=oom)
    if asked:
        return Ended(reason="killed", text=f"killed by {name}, as asked")
    return Ended(reason="killed", text=f"killed by {name}, not for its memory")


def oom_text(peak_memory_mb: float | None, limit_mb: int | None) -> str:
    """Facts of a replica that the kernel killed for memory."""
    facts = [] if peak_memory_mb is None else [f"peak {peak_memory_mb:.0f} MiB"]
    if limit_mb is not None:
        facts.append(f"limit {limit_mb} MiB")
    return f"the kernel killed it for memory ({', '.join(facts)}); raise replica.memory_mb"
