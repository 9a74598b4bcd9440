"""Specification of a replica's container for the Docker engine, and its exit status."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

SOCKET_FOLDER = "/run/luthier"
FILES_FOLDER = "/files"
"""Mount point for host files by path, as an image may restrict its own folders, such as /root."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Specification of a replica's container."""

    name: str
    """Name of the container, unique on the engine."""
    owner: str
    worker: int
    image: str
    command: tuple[str, ...]
    socket_folder: pathlib.Path
    """Folder mounted read-only at `SOCKET_FOLDER`."""
    files: Mapping[str, pathlib.Path]
    """Read-only mounts: path in the container -> absolute file or folder."""
    memory_mb: int | None
    environment: dict[str, str]
    gpu: str | None = None
    """Index or UUID of the container's GPU, if it has one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Exit status as the engine reports it."""

    code: int
    """Exit code; 128 + the signal's number if a signal ended the container."""
    oom: bool
    said: str
    """Last line of the container's output, or ""."""
