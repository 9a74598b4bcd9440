"""Program that the kernel ends (SIGTERM) with the thread that started it.

    python -I -S end_with_parent.py PARENT PROGRAM ARGUMENT...

A `preexec_fn` could hang or kill the child of a process with threads (gRPC's poller, the
allocator). PR_SET_PDEATHSIG survives exec (prctl(2)).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request the signal, check that the parent lives, and exec the program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() == int(sys.argv[1]):
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the list of the caller, no shell


if __name__ == "__main__":
    main()
