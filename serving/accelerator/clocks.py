"""GPU clocks: which are supported, locking one, and restoring those that dead owners left locked.

Changes are recorded in a journal, from which the next process restores the clock after a `kill -9`.

NVML does not reveal locks held by others (`nvidia-smi -lgc`), so the GPU is left unlocked. Calls
block for milliseconds; thread-safe.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
import time
from typing import NamedTuple, Self

from serving.accelerator import nvml, restore_journal
from serving.accelerator.nvml import Gpu
from serving.accelerator.restore_journal import JournalEntry
from serving.errors import AcceleratorUnavailable
from serving.system import process_identity

log = logging.getLogger(__name__)

_SETTLE_S = 0.2
_READ_S = 0.01


def supported_clocks_mhz() -> tuple[int, ...] | str:
    """Return graphics clocks (MHz) at the highest memory clock, ascending, or an error message."""
    try:
        with nvml.open_gpu() as gpu:
            return gpu.clocks_mhz()
    except AcceleratorUnavailable as error:
        return str(error)


def lockable_clocks_mhz() -> tuple[int, ...] | str:
    """Return the lockable clocks (MHz), ascending, or why there are none; briefly locks one."""
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
    """Lock on the GPU's clock; call `close`, or use it as a context manager."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """`folder` is the journal's folder."""
        self._folder = folder
        self._changing = threading.Lock()
        self._name = process_identity.this_process().new_name()
        self._gpu: str | None = None
        self.clock_mhz: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def hold(self, clock_mhz: int | None) -> None:
        """Lock the GPU to a clock, or unlock it with None.

        Raises:
            AcceleratorUnavailable: the clock cannot be locked, or a living process holds a lock.
        """
        with self._changing:
            if clock_mhz == self.clock_mhz:
                return
            if clock_mhz is None:
                self._release()
            else:
                self._lock(clock_mhz)

    def close(self) -> None:
        """Release the lock; if that fails, log it and leave the journal entry."""
        try:
            self.hold(None)
        except AcceleratorUnavailable as error:
            log.error("the GPU's clock cannot be restored", extra={"error": str(error)})

    def _lock(self, clock_mhz: int) -> None:
        place = self._folder or restore_journal.folder()
        with nvml.open_gpu(self._gpu) as gpu:
            uuid = gpu.uuid
            _check_supported(gpu, clock_mhz)
            with restore_journal.exclusive(place):
                known = restore_journal.of_gpu(place, uuid)
                if known is not None and known.owner != self._name:
                    _check_left(known, place)
                    _put_back(place, known)
                    known = None
                note = JournalEntry(
                    gpu=uuid,
                    owner=self._name,
                    boot=restore_journal.boot_id(),
                    clock_mhz=clock_mhz,
                    before=gpu.application_clocks() if known is None else known.before,
                )
                restore_journal.write(place, note)
                try:
                    gpu.lock_clock(clock_mhz)
                except AcceleratorUnavailable:
                    if known is None:
                        restore_journal.remove(place, uuid)  # nothing changed
                    else:
                        restore_journal.write(place, known)
                    raise
            self._gpu, self.clock_mhz = uuid, clock_mhz
            reads_mhz = _wait_for_clock(gpu, clock_mhz)
        log.info("GPU clock locked", extra={"clock_mhz": clock_mhz, "reads_mhz": reads_mhz})

    def _release(self) -> None:
        place, uuid = self._folder or restore_journal.folder(), self._gpu
        assert uuid is not None
        with restore_journal.exclusive(place):
            known = restore_journal.of_gpu(place, uuid)
            if known is not None and known.owner == self._name:
                _put_back(place, known)
        self._gpu = self.clock_mhz = None
        log.info("GPU clock restored", extra={"gpu": uuid})


class Restored(NamedTuple):
    """Results for entries of dead owners, one line each."""

    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def restore_stale(folder: pathlib.Path | None = None) -> Restored:
    """Restore the clocks that dead owners left locked."""
    place = folder or restore_journal.folder()
    if not any(note.is_stale for note in restore_journal.all_of(place)):
        return Restored()
    done, failed = [], []
    try:
        with restore_journal.exclusive(place):
            for note in restore_journal.all_of(place):
                if not note.is_stale:
                    continue
                what = (
                    f"clock of {note.gpu}, which process {note.pid} had locked to "
                    f"{note.clock_mhz} MHz"
                )
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


def _put_back(place: pathlib.Path, note: JournalEntry) -> None:
    if not note.is_of_past_boot:
        with nvml.open_gpu(note.gpu) as gpu:
            gpu.unlock_clock(note.before)
    restore_journal.remove(place, note.gpu)


def _check_left(note: JournalEntry, place: pathlib.Path) -> None:
    if not note.is_stale:
        raise AcceleratorUnavailable(
            f"process {note.pid} has locked the GPU's clock to {note.clock_mhz} MHz; stop "
            "it first (if it has ended, for example with its container, remove "
            f"{place / note.gpu}.json)"
        )


def _check_supported(gpu: Gpu, clock_mhz: int) -> None:
    clocks = gpu.clocks_mhz()
    if clock_mhz not in clocks:
        near = min(clocks, key=lambda clock: abs(clock - clock_mhz))
        raise AcceleratorUnavailable(
            f"the GPU does not support {clock_mhz} MHz; the nearest of its {len(clocks)} clocks is {near} MHz"
        )


def _wait_for_clock(gpu: Gpu, clock_mhz: int) -> int | None:
    until_s = time.monotonic() + _SETTLE_S
    with contextlib.suppress(AcceleratorUnavailable):
        while (reads_mhz := gpu.clock_mhz()) != clock_mhz and time.monotonic() < until_s:
            time.sleep(_READ_S)
        return reads_mhz
    return None
