"""Check whether the control daemon of CUDA MPS runs for this user.

Connects to the daemon's socket, as CUDA does, and sends nothing.

Source: the MPS documentation, sections 4.1 and 4.2 (CUDA_MPS_PIPE_DIRECTORY).
"""

from __future__ import annotations

import errno
import pathlib
import socket
from collections.abc import Mapping

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's daemon puts it
_LISTENING = (errno.EPROTOTYPE, errno.EAGAIN)


def lacking(environ: Mapping[str, str]) -> str | None:
    """Return why GPUs cannot be shared, or None if they can."""
    control = pathlib.Path(environ.get(PIPE_DIRECTORY) or _DEFAULT) / "control"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # a local socket decides at once
        try:
            sock.connect(str(control))
        except OSError as error:
            if error.errno in _LISTENING:
                return None
            why = error.strerror or str(error)
            return f"no CUDA MPS control daemon answers at {control} ({why}); start one with nvidia-cuda-mps-control -d"
    return None
