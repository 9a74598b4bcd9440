"""A process becomes a replica: it joins its control groups, connects to the gateway, and is a `host`.

In: an order {"worker", "socket", "procs", "environment", "kept"} and the pid of the template. A forked child calls
`become`; where a template must not fork, it starts `python -m serving.replica.child ORDER TEMPLATE_PID`. An order
with {"program", "folder"} makes it that program, which is a replica itself, instead of a `host`.

A replica's memory counts from the moment it joins: what it shares with the template is the
template's. Signals that ask to end are left to the gateway, which drains first: a service manager sends
them to every process at once. A replica ends when its socket is closed, when it is killed, and with
its template. One that is "kept" does not end with its socket: it waits for the next gateway on the socket's path,
with what it has loaded, until the template, which knows for how long, kills it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import logging
import math
import os
import pathlib
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from serving.models import command
from serving.replica import error_output, host
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

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.05
"""Between two looks for the next gateway, the first time and at most."""
_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def become(order: Mapping[str, Any], *, parent: int) -> int:
    """Become the replica of an order; returns its exit code.

    Args:
        order: worker, socket (a path), procs (files of its control groups) and environment (variables
            that differ from the template's, such as CUDA reads when it begins); kept where it shall outlive its
            gateway; program (words) and folder where it is to become a program that is a replica itself.
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
    patience_s = None if order.get("kept") is None else math.inf  # the template ends it
    return serve(order["socket"], patience_s=patience_s)


def serve(
    path: str,
    *,
    root: pathlib.Path | None = None,
    patience_s: float | None = None,
) -> int:
    """Be a host on the gateway's socket; returns the exit code.

    Args:
        path: of the socket.
        root: where the gateway's files lie; see `host.serve`.
        patience_s: longest wait for the next gateway when this one has gone; None: there will be none.
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
        following = None
        if patience_s is not None:
            following = functools.partial(_next_gateway, pathlib.Path(path), patience_s)
        return host.serve(sock, root=root, next_gateway=following)


def _next_gateway(path: pathlib.Path, patience_s: float) -> socket.socket | None:
    """Wait for the next gateway on a path; None after a time, or when its folder is removed, which ends all waits."""
    look_s = _FIRST_LOOK_S
    until_s = time.monotonic() + patience_s
    while path.parent.is_dir() and (left_s := until_s - time.monotonic()) > 0.0:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(None if left_s == math.inf else left_s)
        with contextlib.suppress(OSError):
            sock.connect(str(path))
            if error_output.take(sock):
                sock.settimeout(None)
                return sock
        sock.close()
        time.sleep(look_s)
        look_s = min(2.0 * look_s, _LONGEST_LOOK_S)
    return None


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
