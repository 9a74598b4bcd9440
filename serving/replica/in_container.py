"""Entry point of a container replica: imports the runtime, connects to the gateway, runs `host`.

    python -m serving.replica.in_container SOCKET FILES KIND [FOLDER PROGRAM ARGUMENT...]

The host's files are mounted below FILES by their absolute paths. For the kind command, PROGRAM in
FOLDER becomes the replica. Exit codes are those of `child`.
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
    """Run the replica of a command line; return its exit code."""
    log_lines(logging.WARNING)
    child.ignore_requests_to_end()
    socket, files, kind, *program = words
    root = pathlib.Path(files)
    if not program:
        warm_up(kind)
        return child.serve(socket, root=root)
    folder, command, *arguments = program
    if pathlib.Path(command).is_relative_to(folder):  # else it belongs to the image
        command = str(placed(command, root))
    order = {
        "program": [command, *arguments],
        "folder": str(placed(folder, root)),
        "socket": socket,
    }
    return child.become_program(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
