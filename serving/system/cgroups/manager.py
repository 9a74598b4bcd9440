"""CPU and memory limits for replicas, enforced by control groups.

    <permitted parent>/luthier-<owner>/replica-<worker>      (v1: in each controller)

The name shows which groups a killed owner has left; others are never touched. Calls block briefly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from serving.errors import LimitsUnavailable
from serving.system import process_identity
from serving.system.cgroups.cgroup import (
    CgroupFiles,
    ControlGroup,
    Hierarchy,
    hierarchies,
    mount_points,
)
from serving.system.cgroups.groups import GroupV1, GroupV2, hand_down

log = logging.getLogger(__name__)

_MOUNTINFO = pathlib.Path("/proc/self/mountinfo")
_CGROUP = pathlib.Path("/proc/self/cgroup")
_REMOVAL_S = 2.0
_RETRY_S = 0.005
_MAX_SEARCHED = 20_000
_OOM_COUNTERS = ("memory.oom_control", "memory.events")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CgroupSupport:
    """Version of the usable control groups, or why there are none."""

    kind: Literal["v1", "v2"] | None
    reason: str = ""

    @property
    def text(self) -> str:
        """Either "enforced", or "not enforced: " followed by the reason."""
        return "enforced" if self.kind else f"not enforced: {self.reason}"


class CgroupManager:
    """All control groups of one gateway; it makes none if they are unsupported."""

    def __init__(self, name: str, files: CgroupFiles | None = None) -> None:
        self._name = name
        self._files = files or CgroupFiles()
        self._roots: dict[str, pathlib.Path] = {}
        self.support = CgroupSupport(kind=None, reason="not tried yet")

    @property
    def directories(self) -> tuple[pathlib.Path, ...]:
        """Directories of all groups, which stay behind empty if the owner is killed."""
        return tuple(dict.fromkeys(self._roots.values()))

    def open(self, places: Sequence[Hierarchy] | None = None) -> CgroupSupport:
        """Find a place for limited groups by trying `places`, by default `system_places()`."""
        reasons = []
        for place in system_places() if places is None else places:
            self._roots = {name: parent / self._name for name, parent in place.parents.items()}
            try:
                self._make_roots(place)
                self._try_group(place.kind)
            except (LimitsUnavailable, OSError) as error:
                self.close()
                reasons.append(f"{place.kind}: {error}")
                continue
            self.support = CgroupSupport(kind=place.kind)
            return self.support
        self._roots = {}
        reason = reasons[-1] if reasons else "this system has no control groups with cpu and memory"
        hint = "" if os.geteuid() == 0 else " (needs root, or a delegated control group)"
        self.support = CgroupSupport(kind=None, reason=reason + hint)
        return self.support

    def group(self, worker: int) -> ControlGroup | None:
        """Create a replica's group, or raise LimitsUnavailable; return None if unsupported."""
        if self.support.kind is None:
            return None
        return self._group(self.support.kind, f"replica-{worker}")

    def remove(self, group: ControlGroup) -> bool:
        """Remove a group; return False while it has processes."""
        return not [path for path in group.directories if not _try_remove(path, self._files)]

    def clear(self, group: ControlGroup) -> bool:
        """Kill a group's processes and remove it without waiting; return False if some remain."""
        removed = [_try_kill_and_remove(path, self._files) for path in group.directories]
        return all(removed)

    def kill(self, group: ControlGroup) -> bool:
        """Kill a group's processes and remove it; return False after a timeout."""
        return not [path for path in group.directories if not kill_and_remove(path)]

    def close(self) -> bool:
        """Remove all groups, which must be empty; return False after a timeout."""
        return _within_time(
            lambda: not [r for r in self.directories if not _try_remove_tree(r, self._files)]
        )

    def _make_roots(self, place: Hierarchy) -> None:
        if place.kind == "v2":
            hand_down(place.parents["unified"], self._files)
        for root in self.directories:
            self._files.make(root)
        if place.kind == "v2":
            hand_down(self._roots["unified"], self._files)

    def _group(self, kind: Literal["v1", "v2"], name: str) -> ControlGroup:
        directories = {controller: root / name for controller, root in self._roots.items()}
        try:
            for directory in dict.fromkeys(directories.values()):
                self._files.make(directory)
        except OSError as error:
            raise LimitsUnavailable(f"no control group can be created: {error}") from error
        return _group_in(kind, directories, self._files)

    def _try_group(self, kind: Literal["v1", "v2"]) -> None:
        group = self._group(kind, "trial")
        try:
            group.set_limits(cpu=0.5, memory_mb=64)
        finally:
            self.remove(group)


def _group_in(
    kind: Literal["v1", "v2"], directories: Mapping[str, pathlib.Path], files: CgroupFiles
) -> ControlGroup:
    if kind == "v2":
        return GroupV2(directories["unified"], files)
    return GroupV1(directories, files)


def system_places() -> list[Hierarchy]:
    """Return the places where this process may try to create groups."""
    return hierarchies(_text(_MOUNTINFO), _text(_CGROUP))


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def group_of(pid: int) -> ControlGroup | None:
    """Return a process's control group for reading its usage, or None if others share it."""
    for place in hierarchies(_text(_MOUNTINFO), _text(pathlib.Path(f"/proc/{pid}/cgroup"))):
        if any(parent.name == "" or not parent.is_dir() for parent in place.parents.values()):
            continue
        group = _group_in(place.kind, place.parents, CgroupFiles())
        pids = CgroupFiles().read(group.procs_files[-1]) or ""  # none: it has ended
        usage = group.usage()
        if pids.split() == [str(pid)] and None not in (usage.cpu_s, usage.peak_memory_mb):
            return group
    return None


def own_group() -> ControlGroup | None:
    """Return the group that limits this process's memory, for its counters, or None if none does."""
    first: dict[
        str, Hierarchy
    ] = {}  # of each version: those after it are above this process's group
    for place in system_places():
        first.setdefault(place.kind, place)
    for place in first.values():
        files = [parent / name for parent in place.parents.values() for name in _OOM_COUNTERS]
        if any(file.exists() for file in files):  # with both versions, one has the memory
            return _group_in(place.kind, place.parents, CgroupFiles())
    return None


def probe() -> CgroupSupport:
    """Report whether limits can be enforced, by creating a limited group."""
    limits = CgroupManager(process_identity.this_process().new_name())
    try:
        return limits.open()
    finally:
        limits.close()


def cleanup_stale(
    *, temporary: pathlib.Path | None = None, mounts: Sequence[pathlib.Path] | None = None
) -> list[pathlib.Path]:
    """Remove groups, processes and folders whose owners are gone; return the paths removed."""
    removed = []
    for mount in mount_points(_text(_MOUNTINFO)) if mounts is None else mounts:
        removed += [root for root in _stale_groups(mount) if kill_and_remove(root)]
    for directory in _stale_directories(temporary or pathlib.Path(tempfile.gettempdir())):
        shutil.rmtree(directory, ignore_errors=True)
        removed.append(directory)
    return removed


def _stale_groups(mount: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for searched, (path, names, _) in enumerate(os.walk(mount)):
        if searched > _MAX_SEARCHED:
            log.warning("too many control groups to search", extra={"mount": str(mount)})
            break
        ours = [name for name in names if process_identity.of(name) is not None]
        found += [pathlib.Path(path, name) for name in ours if _is_stale(name)]
        names[:] = [name for name in names if name not in ours]
    return found


def _stale_directories(base: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):
            mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            if mine and entry.is_dir(follow_symlinks=False) and _is_stale(entry.name):
                found.append(pathlib.Path(entry.path))
    return found


def _is_stale(name: str) -> bool:
    maker = process_identity.of(name)
    return maker is not None and maker.is_gone()


def kill_and_remove(root: pathlib.Path) -> bool:
    """Kill a group's processes and remove the group; return False if it takes over `_REMOVAL_S`."""
    return _within_time(lambda: _try_kill_and_remove(root, CgroupFiles()))


def _within_time(removes: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + _REMOVAL_S
    while not removes():
        if time.monotonic() > until_s:
            return False
        time.sleep(_RETRY_S)
    return True


def _try_kill_and_remove(root: pathlib.Path, files: CgroupFiles) -> bool:
    if _try_remove_tree(root, files):
        return True
    for path, _, _ in os.walk(root):  # yields nothing for what another process removes meanwhile
        for text in (files.read(pathlib.Path(path, "cgroup.procs")) or "").split():
            if int(text) > 0:  # 0: a process of another pid namespace
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(text), signal.SIGKILL)
    return _try_remove_tree(root, files)


def _try_remove_tree(root: pathlib.Path, files: CgroupFiles) -> bool:
    with contextlib.suppress(OSError):
        for path in list(root.iterdir()):
            if path.is_dir():
                _try_remove(path, files)
    return _try_remove(root, files)


def _try_remove(directory: pathlib.Path, files: CgroupFiles) -> bool:
    try:
        files.remove(directory)
    except OSError:  # on a read-only file system, of a container, also where there is none
        return not directory.exists()
    return True
