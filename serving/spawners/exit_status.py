"""Exit status of a replica, be it a process or a container."""

from __future__ import annotations

import dataclasses
import signal
from typing import Literal

from serving.wire import exit_codes

_EXITS = {
    exit_codes.GPU_BROKEN: "an error left the GPU unusable for it; its error output has the reason",
    exit_codes.NO_GATEWAY: "it could not connect to the gateway",
    exit_codes.NO_PROGRAM: "its program cannot be started; its error output has the reason",
    exit_codes.NOT_LIMITED: "it could not join its control groups",
    exit_codes.NOT_MADE: "the kernel refused to create the process; its error output has the reason",
}
_SIGNALS = frozenset(signal.Signals)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """Exit status of a replica.

    Its reason is `oom` if the kernel killed it for memory, `killed` for another SIGKILL, `crash`
    for another signal or an error code, `exit` if it ended normally after its socket closed, and
    `node` if its machine is lost.
    """

    reason: Literal["oom", "crash", "killed", "exit", "node"]
    text: str
    together: tuple[int, ...] = ()
    """All workers that a lost machine took along, with this one; empty if it ended alone."""


def from_code(code: int, said: str = "") -> ExitStatus:
    """Return the status for an exit code; `said` is the last output line."""
    if not code:
        return ExitStatus(reason="exit", text="exited normally")
    why = _EXITS.get(code) or (
        f"last output: {said}" if said else "its error output has the reason"
    )
    return ExitStatus(reason="crash", text=f"exited with code {code}: {why}")


def from_signal(number: int, *, oom: str | None, asked: bool) -> ExitStatus:
    """Return the status of a replica that a signal has ended.

    `oom` describes an OOM kill, if there was one; `asked` means that the gateway killed it.
    """
    name = f"signal {number}"
    if number in _SIGNALS:  # most real-time signals have no name
        name += f" ({signal.Signals(number).name})"
    if number != signal.SIGKILL:
        return ExitStatus(reason="crash", text=f"ended by {name}")
    if oom is not None:  # even if the gateway killed it too
        return ExitStatus(reason="oom", text=oom)
    if asked:
        return ExitStatus(reason="killed", text=f"killed by {name}, as asked")
    return ExitStatus(reason="killed", text=f"killed by {name}, not for its memory")


def oom_text(peak_memory_mb: float | None, limit_mb: int | None) -> str:
    """Describe an OOM kill."""
    facts = [] if peak_memory_mb is None else [f"peak {peak_memory_mb:.0f} MiB"]
    if limit_mb is not None:
        facts.append(f"limit {limit_mb} MiB")
    return f"the kernel killed it for memory ({', '.join(facts)}); raise replica.memory_mb"
