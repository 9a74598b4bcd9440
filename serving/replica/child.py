"""A process becomes a replica: it joins its control groups, connects to the gateway, and is a `host`.

In: an order {"worker", "socket", "procs", "environment"} and the pid of the template. A forked child calls
`become`; where a template must not fork, it starts `python -m serving.replica.child ORDER TEMPLATE_PID`. An order
with {"program", "folder"} makes it that program, which is a replica itself, instead of a `host`.

A replica's memory counts from the moment it joins: what it shares with the template is the
template's. Signals that ask to end are left to the gateway, which drains first: a service manager sends
them to every process at once. A replica ends when its socket is closed, when it is killed, and with
its template.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import pathlib
import random
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from serving.models import command
from serving.replica import host
from serving.replica.log_lines import log_lines
from serving.replica.prime import prime

log = logging.getLogger(__name__)

EXIT_NO_GATEWAY = 69
"""It could not connect to the gateway (EX_UNAVAILABLE)."""
EXIT_NOT_MADE = 72
"""Reported by the template for a replica that the kernel refused to make (EX_OSFILE, unused otherwise)."""
EXIT_NOT_LIMITED = 71
"""It could not join its control groups (EX_OSERR)."""
EXIT_NO_PROGRAM = 127
"""Its program cannot be started (as shells say it)."""

_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def become(order: Mapping[str, Any], *, parent: int) -> int:
    """Become the replica of an order; returns its exit code.

    Args:
        order: worker, socket (a path), procs (files of its control groups) and environment (variables
            that differ from the template's, such as CUDA reads when it begins); program (words) and folder where
            it is to become a program that is a replica itself.
        parent: pid of the template, with which the replica ends.
    """
    for procs in order["procs"]:
        try:
            pathlib.Path(procs).write_text("0", encoding="ascii")
        except OSError as error:
            log.error("a replica cannot join its control group", extra={"error": str(error)})
            return EXIT_NOT_LIMITED
    os.environ.update(order["environment"])
    os.setpgid(0, 0)  # the template ends what is left in it
    _end_with_parent(parent)
    ignore_requests_to_end()
    if "program" in order:
        return become_program(order)
    return serve(order["socket"])


def serve(path: str, *, root: pathlib.Path | None = None) -> int:
    """Be a host on the gateway's socket; returns the exit code.

    Args:
        path: of the socket.
        root: where the gateway's files lie; see `host.serve`.
    """
    np.random.seed(random.SystemRandom().getrandbits(32))  # noqa: NPY002 - what a model may use
    gc.disable()
    prime()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            log.error("a replica cannot connect to its gateway", extra={"error": str(error)})
            return EXIT_NO_GATEWAY
        return host.serve(sock, root=root)


def become_program(order: Mapping[str, Any]) -> int:
    """Become the program of an order; what was prepared so far stays with it: groups, parent, ignored signals."""
    try:
        command.become(order["program"], order["folder"], order["socket"])
    except OSError as error:
        facts = {"program": order["program"][0], "error": str(error)}
        log.error("the program of a replica cannot be started", extra=facts)
        return EXIT_NO_PROGRAM


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)  # it ended before the request above


def ignore_requests_to_end() -> None:
    """Leave SIGINT, SIGTERM and SIGHUP to the gateway."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    log_lines(logging.WARNING)
    sys.exit(become(json.loads(sys.argv[1]), parent=int(sys.argv[2])))
