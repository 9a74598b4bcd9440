"""Read files that users name: regular files of bounded size.

A FIFO would block, and a device never ends.
"""

from __future__ import annotations

import errno
import io
import os
import pathlib
import stat
from typing import BinaryIO

MAX_BYTES = 1024 * 1024
"""Maximum size of a file written by a person."""


def open_file(path: str | pathlib.Path, *, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading; if `max_bytes` is None, the caller bounds the size.

    Raises OSError if it is unreadable, not regular, or too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO opens at once
    try:
        seen = os.fstat(descriptor)
        if stat.S_ISDIR(seen.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if max_bytes is not None and seen.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: str | pathlib.Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return a file's bytes; raises as `open_file` does."""
    with open_file(path, max_bytes=max_bytes) as file:
        data = file.read(max_bytes + 1)  # kernel files report no size
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def text(path: str | pathlib.Path, *, max_bytes: int = MAX_BYTES, encoding: str = "utf-8") -> str:
    """Return a file's text with LF line ends; raises as `read` does, or UnicodeDecodeError."""
    data = io.BytesIO(read(path, max_bytes=max_bytes))
    return io.TextIOWrapper(data, encoding=encoding).read()


def _too_large(path: str | pathlib.Path, max_bytes: int) -> OSError:
    most = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"larger than {most}", str(path))
