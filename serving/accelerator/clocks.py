"""The graphics clock of the GPU: which it supports, one that is held, and what dead owners left put back.

In: a clock in MHz, or none. Out: the GPU locked to it, read back, and unlocked again: when another is wanted,
at the end, after an exception; after a `kill -9` by the next process that comes (`restore_stale`). What is
changed is noted first (`notes`). What a living process holds is not taken from it.

A lock that somebody else had set (`nvidia-smi -lgc`) is not known to NVML, so it cannot be put back: the
GPU is left unlocked. Application clocks are put back as they were.

Blocking, for milliseconds: the driver and a disk. Any thread may call.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
import time
from typing import NamedTuple, Self

from serving import owner
from serving.accelerator import notes, nvml
from serving.accelerator.notes import Note
from serving.accelerator.nvml import Gpu
from serving.errors import AcceleratorUnavailable

log = logging.getLogger(__name__)

_SETTLE_S = 0.2
"""Longest wait until the clock reads as locked; one that is idle, hot or short of power may never."""
_READ_S = 0.01


def supported_clocks_mhz() -> tuple[int, ...] | str:
    """Graphics clocks that the GPU supports at its highest memory clock; changes nothing.

    Returns:
        Clocks in MHz, ascending; or one line that says why there are none.
    """
    try:
        with nvml.opened() as gpu:
            return gpu.clocks_mhz()
    except AcceleratorUnavailable as error:
        return str(error)


def lockable_clocks_mhz() -> tuple[int, ...] | str:
    """Graphics clocks that this process can lock the GPU to, found out by locking it to the highest for a moment.

    Returns:
        Clocks in MHz, ascending; or one line that says why it cannot.
    """
    clocks = supported_clocks_mhz()
    if isinstance(clocks, str) or len(clocks) < 2:
        return clocks
    try:
        with ClockLock() as lock:
            lock.hold(clocks[-1])
    except AcceleratorUnavailable as error:
        return str(error)
    return clocks


class ClockLock:
    """One owner's hold on the clock of the GPU; `close` it, or use it as a context manager."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """Nothing is held yet.

        Args:
            folder: of the notes; None: this user's (`notes.folder`).
        """
        self._folder = folder
        self._changing = threading.Lock()
        self._name = owner.this_process().new_name()
        self._gpu: str | None = None
        """UUID of the GPU that is held."""
        self.clock_mhz: int | None = None
        """What is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def hold(self, clock_mhz: int | None) -> None:
        """Lock the GPU to a clock; None: to none.

        Raises:
            AcceleratorUnavailable: it cannot be done, or another living process holds the GPU; what was
                held before still is.
        """
        with self._changing:
            if clock_mhz == self.clock_mhz:
                return
            if clock_mhz is None:
                self._release()
            else:
                self._lock(clock_mhz)

    def close(self) -> None:
        """Release what is held; a fault is logged, and the note left for who comes next."""
        try:
            self.hold(None)
        except AcceleratorUnavailable as error:
            log.error("the GPU's clock cannot be restored", extra={"error": str(error)})

    def _lock(self, clock_mhz: int) -> None:
        place = self._folder or notes.folder()
        with nvml.opened(self._gpu) as gpu:
            uuid = gpu.uuid
            _check_supported(gpu, clock_mhz)
            with notes.exclusive(place):
                known = notes.of_gpu(place, uuid)
                if known is not None and known.owner != self._name:
                    _check_left(known, place)
                    _put_back(place, known)
                    known = None
                note = Note(
                    gpu=uuid,
                    owner=self._name,
                    boot=notes.boot_id(),
                    clock_mhz=clock_mhz,
                    before=gpu.application_clocks() if known is None else known.before,
                )
                notes.write(place, note)
                try:
                    gpu.lock_clock(clock_mhz)
                except AcceleratorUnavailable:
                    if known is None:
                        notes.remove(place, uuid)  # nothing was changed
                    else:
                        notes.write(place, known)
                    raise
            self._gpu, self.clock_mhz = uuid, clock_mhz
            reads_mhz = _settled(gpu, clock_mhz)
        log.info("GPU clock locked", extra={"clock_mhz": clock_mhz, "reads_mhz": reads_mhz})

    def _release(self) -> None:
        place, uuid = self._folder or notes.folder(), self._gpu
        assert uuid is not None
        with notes.exclusive(place):
            known = notes.of_gpu(place, uuid)
            if known is not None and known.owner == self._name:
                _put_back(place, known)
        self._gpu = self.clock_mhz = None
        log.info("GPU clock restored", extra={"gpu": uuid})


class Restored(NamedTuple):
    """What became of notes whose owners are gone, a line each."""

    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def restore_stale(folder: pathlib.Path | None = None) -> Restored:
    """Put back what owners that are gone have left; costs a look into a folder where they left nothing."""
    place = folder or notes.folder()
    if not any(note.is_stale for note in notes.all_of(place)):
        return Restored()
    done, failed = [], []
    try:
        with notes.exclusive(place):
            for note in notes.all_of(place):
                if not note.is_stale:
                    continue
                what = f"clock of {note.gpu}, which process {note.pid} had locked to {note.clock_mhz} MHz"
                try:
                    _put_back(place, note)
                except AcceleratorUnavailable as error:
                    failed.append(f"{what}: {error}")
                else:
                    done.append(what)
    except AcceleratorUnavailable as error:
        failed.append(str(error))
    for line in failed:
        log.warning("not restored", extra={"what": line})
    return Restored(tuple(done), tuple(failed))


def _put_back(place: pathlib.Path, note: Note) -> None:
    """Undo what a note tells of, and forget it."""
    if not note.is_of_past_boot:
        with nvml.opened(note.gpu) as gpu:
            gpu.unlock_clock(note.before)
    notes.remove(place, note.gpu)


def _check_left(note: Note, place: pathlib.Path) -> None:
    if not note.is_stale:
        raise AcceleratorUnavailable(
            f"process {note.pid} holds the GPU's clock at {note.clock_mhz} MHz; end it first "
            f"(if it is gone, as with its container, remove {place / note.gpu}.json)"
        )


def _check_supported(gpu: Gpu, clock_mhz: int) -> None:
    clocks = gpu.clocks_mhz()
    if clock_mhz not in clocks:
        near = min(clocks, key=lambda clock: abs(clock - clock_mhz))
        raise AcceleratorUnavailable(
            f"the GPU does not support {clock_mhz} MHz; the nearest of its {len(clocks)} clocks is {near} MHz"
        )


def _settled(gpu: Gpu, clock_mhz: int) -> int | None:
    """The clock that is read, once it is the wanted one or after a while; None: the GPU does not tell it."""
    until_s = time.monotonic() + _SETTLE_S
    with contextlib.suppress(AcceleratorUnavailable):
        while (reads_mhz := gpu.clock_mhz()) != clock_mhz and time.monotonic() < until_s:
            time.sleep(_READ_S)
        return reads_mhz
    return None
