"""Reads files that a user names: regular ones, and no more of them than is expected.

In: a path. Out: what the file holds. A FIFO makes its reader wait, and a device has no end: neither is read.
Errors say in a few words what is wrong, for a message that names the file (`OSError.strerror`).
"""

from __future__ import annotations

import errno
import io
import os
import pathlib
import stat
from typing import BinaryIO

MAX_BYTES = 1024 * 1024
"""Of a file that a person writes."""


def opened(path: str | pathlib.Path, *, max_bytes: int | None = None) -> BinaryIO:
    """A regular file, to be read.

    Args:
        path: of the file.
        max_bytes: the most that it may have; None: whoever reads it takes no more than is needed.

    Raises:
        OSError: it cannot be read, is something else, or is larger.
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
    """What a file holds.

    Raises:
        OSError: as of `opened`.
    """
    with opened(path, max_bytes=max_bytes) as file:
        data = file.read(max_bytes + 1)  # those of the kernel tell no size
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def text(path: str | pathlib.Path, *, max_bytes: int = MAX_BYTES, encoding: str = "utf-8") -> str:
    """The text in a file, its lines ended by LF.

    Raises:
        OSError: as of `opened`.
        UnicodeDecodeError: it is no text of that encoding.
    """
    data = io.BytesIO(read(path, max_bytes=max_bytes))
    return io.TextIOWrapper(data, encoding=encoding).read()


def _too_large(path: str | pathlib.Path, max_bytes: int) -> OSError:
    most = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"larger than {most}", str(path))
