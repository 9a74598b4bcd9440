"""Container of a replica as the Docker engine is told of it, and its exit status."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

SOCKET_FOLDER = "/run/luthier"
FILES_FOLDER = "/files"
"""Mount point of host files, by path; an image may restrict its own folders, as most do /root."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Specification of a replica's container."""

    name: str
    """Unique on the engine."""
    owner: str
    worker: int
    image: str
    command: tuple[str, ...]
    socket_folder: pathlib.Path
    """Mounted read-only at `SOCKET_FOLDER`."""
    files: Mapping[str, pathlib.Path]
    """Read-only mounts: path in the container -> absolute file or folder."""
    memory_mb: int | None
    environment: dict[str, str]
    gpu: str | None = None
    """Index or UUID of its GPU; None: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Exit status from the engine."""

    code: int
    """128 + the signal's number if a signal ended it."""
    oom: bool
    said: str
    """Last line of its output, or ""."""
