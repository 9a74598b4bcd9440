"""Journal of GPU changes, written before each change so that a later process can undo it.

Files are `<UUID of the GPU>.json`. Entries record their boot, since a reboot ends a lock. Changes
need `exclusive`.

The folder is `luthier/accelerator` in `$XDG_STATE_HOME`, or in `/run` for root, or in
`~/.local/state` or the temporary directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping

from serving.accelerator.nvml import ApplicationClocks
from serving.errors import AcceleratorUnavailable
from serving.system import private_folder, process_identity

log = logging.getLogger(__name__)

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_GPU = re.compile(r"[A-Za-z0-9-]{1,100}")
_WAIT_S = 5.0
_RETRY_S = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A change to a GPU."""

    gpu: str
    owner: str
    """Name of the owning process, as `ProcessIdentity.new_name` makes it."""
    boot: str
    """Id of the boot; empty if unknown."""
    clock_mhz: int
    before: ApplicationClocks | None

    @property
    def is_stale(self) -> bool:
        """Whether the owner is certainly gone."""
        if self.is_of_past_boot:
            return True
        maker = process_identity.of(self.owner)
        return maker is not None and maker.is_gone()

    @property
    def is_of_past_boot(self) -> bool:
        """Whether a reboot has ended the lock."""
        return bool(self.boot) and self.boot != boot_id()

    @property
    def pid(self) -> int:
        """Process id of the owner, or 0 if its name cannot be parsed."""
        maker = process_identity.of(self.owner)
        return 0 if maker is None else maker.pid


def boot_id() -> str:
    """Return the id of this boot, or "" if unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def folder(environ: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Return this user's journal folder."""
    given = environ.get("XDG_STATE_HOME")
    if given:
        base = pathlib.Path(given)
    elif os.geteuid() == 0:
        base = pathlib.Path("/run")
    else:
        try:
            base = pathlib.Path.home() / ".local" / "state"
        except RuntimeError:  # no home, as in many containers
            base = _in_temporary()
    return base / "luthier" / "accelerator"


def _in_temporary() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir(), f"luthier-state-{os.geteuid()}")


@contextlib.contextmanager
def exclusive(place: pathlib.Path) -> Iterator[None]:
    """Lock the journal's folder, created if missing.

    Raises:
        AcceleratorUnavailable: the folder is not writable, belongs to another user, or is locked.
    """
    temporary = _in_temporary()
    try:
        if temporary in place.parents:  # anybody can create that name there
            private_folder.ensure(temporary, advice="set XDG_STATE_HOME")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(place / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AcceleratorUnavailable(
            f"changes to a GPU cannot be recorded in {place} ({error.strerror or error}); "
            "name a writable folder in XDG_STATE_HOME"
        ) from error
    try:
        until_s = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise AcceleratorUnavailable(
                        "another process has been changing the GPU's clock for over "
                        f"{_WAIT_S:g} s ({place})"
                    ) from None
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(lock)


def all_of(place: pathlib.Path) -> list[JournalEntry]:
    """Return the entries in a folder; log other JSON files."""
    found = []
    try:
        paths = sorted(path for path in place.iterdir() if path.suffix == ".json")
    except OSError:  # missing or another user's: no entries
        return []
    for path in paths:
        try:
            found.append(_parse(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("not a record of a GPU", extra={"path": str(path), "error": repr(error)})
    return found


def of_gpu(place: pathlib.Path, gpu: str) -> JournalEntry | None:
    """Return a GPU's entry, or None."""
    return next((note for note in all_of(place) if note.gpu == gpu), None)


def write(place: pathlib.Path, note: JournalEntry) -> None:
    """Replace a GPU's entry durably, or raise AcceleratorUnavailable."""
    path = _path(place, note.gpu)
    fresh = path.with_suffix(".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(note), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync(place)
    except OSError as error:
        raise AcceleratorUnavailable(
            f"changes to a GPU cannot be recorded in {path} ({error.strerror})"
        ) from error


def remove(place: pathlib.Path, gpu: str) -> None:
    """Remove a GPU's entry."""
    _path(place, gpu).unlink(missing_ok=True)
    _sync(place)


def _path(place: pathlib.Path, gpu: str) -> pathlib.Path:
    if not _GPU.fullmatch(gpu):
        raise AcceleratorUnavailable(f"the GPU's name {gpu!r:.120} cannot be a file name")
    return place / f"{gpu}.json"


def _sync(place: pathlib.Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(text: str) -> JournalEntry:
    data = json.loads(text)
    before = data["before"]
    return JournalEntry(
        gpu=str(data["gpu"]),
        owner=str(data["owner"]),
        boot=str(data["boot"]),
        clock_mhz=int(data["clock_mhz"]),
        before=None if before is None else ApplicationClocks(*map(int, before)),
    )
