"""Entry point of a replica process: join control groups, connect to the gateway, run `main_loop`.

Its inputs are an order {"worker", "socket", "procs", "environment"} and the fork server's pid. A
forked child calls `run`; a new process is started as

    python -m serving.replica.process_entrypoint ORDER TEMPLATE_PID

If the order has {"program", "folder"}, the process becomes that program. Memory shared with the
fork server is charged to the fork server.
"""

from __future__ import annotations

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

from serving.replica import main_loop
from serving.replica.preload import run_small_model
from serving.system.end_with_parent import end_with, ignore_requests_to_end
from serving.system.log_lines import log_lines
from serving.wire import exit_codes

log = logging.getLogger(__name__)


def run(order: Mapping[str, Any], *, parent: int) -> int:
    """Become the replica that an order describes; return its exit code.

    `procs` lists the control groups' procs files; `environment` holds variables that override the
    fork server's. The replica ends when `parent`, the fork server, does.
    """
    for procs in order["procs"]:
        try:
            pathlib.Path(procs).write_text("0", encoding="ascii")
        except OSError as error:
            log.error("a replica cannot join its control group", extra={"error": str(error)})
            return exit_codes.NOT_LIMITED
    os.environ.update(order["environment"])
    os.setpgid(0, 0)  # the fork server kills the whole group
    end_with(parent, signal.SIGKILL)
    ignore_requests_to_end()  # which a service manager sends to all; the gateway drains first
    if "program" in order:
        return become_program(order)
    return serve(order["socket"])


def serve(path: str, *, root: pathlib.Path | None = None) -> int:
    """Run `main_loop` on the gateway's socket; return the exit code."""
    np.random.seed(random.SystemRandom().getrandbits(32))  # noqa: NPY002 - what a model may use
    gc.disable()
    run_small_model()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            log.error("a replica cannot connect to its gateway", extra={"error": str(error)})
            return exit_codes.NO_GATEWAY
        return main_loop.serve(sock, root=root)


def become_program(order: Mapping[str, Any]) -> int:
    """Become the order's program, whose last argument is the path of the gateway's Unix socket."""
    program = order["program"]
    try:
        os.chdir(order["folder"])
        os.execv(program[0], [*program, order["socket"]])  # noqa: S606 - no shell is meant
    except OSError as error:
        facts = {"program": program[0], "error": str(error)}
        log.error("the program of a replica cannot be started", extra=facts)
        return exit_codes.NO_PROGRAM


if __name__ == "__main__":
    log_lines(logging.WARNING)
    sys.exit(run(json.loads(sys.argv[1]), parent=int(sys.argv[2])))
