"""Entry point of a container replica: import the runtime, connect to the gateway, run `main_loop`.

    python -m serving.replica.container_entrypoint SOCKET FILES KIND [FOLDER PROGRAM ARGUMENT...]

The host's files are mounted below FILES at their absolute paths. For the `command` kind, PROGRAM
in FOLDER becomes the replica. Exit codes are those of `process_entrypoint`.
"""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Sequence

from serving.replica import process_entrypoint
from serving.replica.preload import import_runtime
from serving.system.end_with_parent import ignore_requests_to_end
from serving.system.log_lines import log_lines
from serving.wire.staged_path import staged_path


def main(words: Sequence[str]) -> int:
    """Run the replica that a command line describes; return its exit code."""
    log_lines(logging.WARNING)
    ignore_requests_to_end()
    socket, files, kind, *program = words
    root = pathlib.Path(files)
    if not program:
        import_runtime(kind)
        return process_entrypoint.serve(socket, root=root)
    folder, command, *arguments = program
    if pathlib.Path(command).is_relative_to(folder):  # else it belongs to the image
        command = str(staged_path(command, root))
    order = {
        "program": [command, *arguments],
        "folder": str(staged_path(folder, root)),
        "socket": socket,
    }
    return process_entrypoint.become_program(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
