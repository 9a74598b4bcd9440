"""What was changed on a GPU, on disk before it is changed: so that whoever comes later can put it back.

In: notes of one GPU each. Out: files `<UUID of the GPU>.json` in one folder. A note is whole or not there,
and outlives a `kill -9` and a lost power supply. It does not outlive its meaning: a lock ends with the
boot, so the note tells of which boot it is. Changes are made under `exclusive`, by one process at a time.

The folder is `$XDG_STATE_HOME/luthier/accelerator` where that variable is set; else `/run/luthier/accelerator`
for root, whose HOME depends on how it became root; else `~/.local/state/luthier/accelerator`, in the temporary
directory for a user without a home.
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

from serving import owner, private_folder
from serving.accelerator.nvml import ApplicationClocks
from serving.errors import AcceleratorUnavailable

log = logging.getLogger(__name__)

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_GPU = re.compile(r"[A-Za-z0-9-]{1,100}")
_WAIT_S = 5.0
_RETRY_S = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One change of one GPU."""

    gpu: str
    """UUID."""
    owner: str
    """Who made it, as `owner.Owner.new_name` names it."""
    boot: str
    """In which boot; empty where the system does not tell."""
    clock_mhz: int
    """What the clock was locked to."""
    before: ApplicationClocks | None
    """The application clocks before it."""

    @property
    def is_stale(self) -> bool:
        """Whether its owner is surely gone."""
        if self.is_of_past_boot:
            return True
        maker = owner.of(self.owner)
        return maker is not None and maker.is_gone()

    @property
    def is_of_past_boot(self) -> bool:
        """Whether the machine was started again since: then the lock is gone as well."""
        return bool(self.boot) and self.boot != boot_id()

    @property
    def pid(self) -> int:
        """The owner's process."""
        maker = owner.of(self.owner)
        return 0 if maker is None else maker.pid


def boot_id() -> str:
    """Of this boot; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def folder(environ: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Where this user's notes are."""
    given = environ.get("XDG_STATE_HOME")
    if given:
        base = pathlib.Path(given)
    elif os.geteuid() == 0:
        base = pathlib.Path("/run")
    else:
        try:
            base = pathlib.Path.home() / ".local" / "state"
        except RuntimeError:  # a user without a home, as in many containers
            base = _in_temporary()
    return base / "luthier" / "accelerator"


def _in_temporary() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir(), f"luthier-state-{os.geteuid()}")


@contextlib.contextmanager
def exclusive(place: pathlib.Path) -> Iterator[None]:
    """The folder, made where it is missing, for this process alone until the block is left.

    Raises:
        AcceleratorUnavailable: it cannot be written, is not this user's own, or another process keeps it.
    """
    temporary = _in_temporary()
    try:
        if temporary in place.parents:  # where anybody can make a folder of that name
            private_folder.made(temporary, advice="set XDG_STATE_HOME")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(place / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AcceleratorUnavailable(
            f"what is changed on a GPU cannot be noted in {place} ({error.strerror or error}); "
            "name a folder that can be written in XDG_STATE_HOME"
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
                        f"another process changes the GPU's clock for over {_WAIT_S:g} s ({place})"
                    ) from None
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(lock)


def all_of(place: pathlib.Path) -> list[Note]:
    """The notes in a folder; a file that is none is left alone and logged."""
    found = []
    try:
        paths = sorted(path for path in place.iterdir() if path.suffix == ".json")
    except OSError:  # not there, or another user's: nothing of ours is in it
        return []
    for path in paths:
        try:
            found.append(_parsed(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("not a note of a GPU", extra={"path": str(path), "error": repr(error)})
    return found


def of_gpu(place: pathlib.Path, gpu: str) -> Note | None:
    """The note of one GPU."""
    return next((note for note in all_of(place) if note.gpu == gpu), None)


def write(place: pathlib.Path, note: Note) -> None:
    """Keep a note, in place of an earlier one of its GPU; durable when this returns.

    Raises:
        AcceleratorUnavailable: it cannot be written.
    """
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
            f"what is changed on a GPU cannot be noted in {path} ({error.strerror})"
        ) from error


def remove(place: pathlib.Path, gpu: str) -> None:
    """Forget the note of a GPU."""
    _path(place, gpu).unlink(missing_ok=True)
    _sync(place)


def _path(place: pathlib.Path, gpu: str) -> pathlib.Path:
    if not _GPU.fullmatch(gpu):
        raise AcceleratorUnavailable(f"the GPU calls itself {gpu!r:.120}, which names no file")
    return place / f"{gpu}.json"


def _sync(place: pathlib.Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parsed(text: str) -> Note:
    data = json.loads(text)
    before = data["before"]
    return Note(
        gpu=str(data["gpu"]),
        owner=str(data["owner"]),
        boot=str(data["boot"]),
        clock_mhz=int(data["clock_mhz"]),
        before=None if before is None else ApplicationClocks(*map(int, before)),
    )
