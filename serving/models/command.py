"""Kind command: a program in any language that is a replica itself and speaks the replica wire.

In: the program's words, its folder, and the path of the Unix socket on which the gateway listens. Out: a
process that has become the program: in the same control groups, with the same parent, deaf to the
same signals. The socket's path is its last argument; what it has to say there is in
docs/replica-wire.md. No model is loaded by Python here.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import NoReturn

from serving.errors import ModelLoadFailed
from serving.values import Signature


class Model:
    """Stands in the registry of kinds; a Python host cannot load what is a program of its own."""

    signature: Signature

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        del threads
        raise ModelLoadFailed(
            str(path), "the kind command is a program of its own, started in place of this replica"
        )


def become(words: Sequence[str], folder: str, socket: str) -> NoReturn:
    """Turn this process into the program.

    Raises:
        OSError: it cannot be started.
    """
    os.chdir(folder)
    os.execv(words[0], [*words, socket])  # noqa: S606 - no shell is meant
