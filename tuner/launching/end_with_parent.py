"""Become a program that the kernel ends (SIGTERM) when the thread that started this one ends.

    python -I -S end_with_parent.py PARENT PROGRAM ARGUMENT...

A program of its own rather than a function between fork and exec (`preexec_fn`): in a process with threads, what
libraries do at a fork (gRPC's poller, the allocator) can hang the child or end it. The request outlives exec
(prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, check that the parent lives, and become the program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() == int(sys.argv[1]):
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the list of the caller, no shell


if __name__ == "__main__":
    main()
