"""The inside of a container replica: imports the runtime, connects to the gateway, and is a `host`.

    python -m serving.replica.in_container SOCKET FILES KIND [FOLDER PROGRAM ARGUMENT...]

In: the path of a Unix socket in a mounted folder, the folder below which the host's files are mounted by their
absolute paths, the kind of model, and for the kind command the program that is the replica and its folder. Out: an exit
code as of any replica (`child`). Limits, rights and the way here are the engine's; the replica ends when its socket is
closed or it is killed. The runtime is imported before the gateway is greeted: from then on a start costs only the
model.
"""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Sequence

from serving.replica import child
from serving.replica.log_lines import log_lines
from serving.replica.shelf import placed
from serving.replica.warm import warm_up


def main(words: Sequence[str]) -> int:
    """Be the replica of a command line; returns its exit code."""
    log_lines(logging.WARNING)
    child.ignore_requests_to_end()
    socket, files, kind, *program = words
    root = pathlib.Path(files)
    if not program:
        warm_up(kind)
        return child.serve(socket, root=root)
    folder, command, *arguments = program
    if pathlib.Path(command).is_relative_to(folder):  # else it is one of the image
        command = str(placed(command, root))
    order = {
        "program": [command, *arguments],
        "folder": str(placed(folder, root)),
        "socket": socket,
    }
    return child.become_program(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
