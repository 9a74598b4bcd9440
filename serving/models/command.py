"""Kind command: a program in any language that is the replica and speaks the wire itself.

It replaces the replica process. Its last argument is the gateway's Unix socket
(docs/replica-wire.md).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import NoReturn

from serving.errors import ModelLoadFailed
from serving.values import Signature


class Model:
    """Registry entry; a Python replica cannot load it."""

    signature: Signature

    def __init__(self, path: pathlib.Path | None, *, threads: int) -> None:
        del threads
        raise ModelLoadFailed(
            str(path), "the kind command is a separate program, started instead of this replica"
        )


def become(words: Sequence[str], folder: str, socket: str) -> NoReturn:
    """Replace this process by the program, or raise OSError."""
    os.chdir(folder)
    os.execv(words[0], [*words, socket])  # noqa: S606 - no shell is meant
