"""End a process together with the thread that started it, by a kernel signal, even after `kill -9`.

    python -I -S end_with_parent.py PARENT PROGRAM ARGUMENT...      run a program that gets SIGTERM

A `preexec_fn` could hang or kill the child of a process with threads (gRPC's poller, the
allocator). PR_SET_PDEATHSIG survives exec (prctl(2)). Imports are few, for a quick start.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send a signal when the parent ends; exit now if it has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(0)


def ignore_requests_to_end() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP, which a service manager sends to all processes at once."""
    for number in _REQUESTS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    end_with(int(sys.argv[1]), signal.SIGTERM)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the list of the caller, no shell
