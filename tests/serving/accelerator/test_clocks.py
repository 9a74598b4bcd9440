"""The GPU's clock is read, locked, and put back in any case."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import pytest

from serving.accelerator import clocks, restore_journal
from serving.accelerator.clocks import ClockLock
from serving.errors import AcceleratorUnavailable
from serving.system import process_identity
from tests.fakes.gpu import CLOCKS_MHZ, NO_DRIVER, NO_PERMISSION, NOT_SUPPORTED, UUID

HOLDER = """
import sys, time
from serving.accelerator.clocks import ClockLock
lock = ClockLock()
lock.hold(900)
print("held", flush=True)
time.sleep(60)
"""


def held_by_another() -> subprocess.Popen[bytes]:
    """A process that holds the clock, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def test_clocks_or_a_reason() -> None:
    """Ascending clocks in MHz where a GPU tells them, else one line that a report can show."""
    found = clocks.supported_clocks_mhz()
    if isinstance(found, str):
        assert found
        assert "\n" not in found
    else:
        assert list(found) == sorted(set(found))
        assert found[0] > 0


def test_the_clocks_of_the_highest_memory_clock_are_offered(gpu) -> None:
    """What the GPU supports, and nothing is changed to know it."""
    assert clocks.supported_clocks_mhz() == CLOCKS_MHZ
    assert gpu.changes == []


def test_a_clock_is_held_and_put_back(gpu) -> None:
    """Locked while held, another one in its place, unlocked at the end; the note comes and goes with it."""
    with ClockLock() as lock:
        lock.hold(900)
        assert gpu.locked_mhz == 900
        (path,) = gpu.notes
        assert json.loads(path.read_text())["clock_mhz"] == 900
        lock.hold(1410)
        assert (gpu.locked_mhz, lock.clock_mhz) == (1410, 1410)
        lock.hold(1410)
    assert gpu.notes == []
    assert gpu.changes == ["lock 900", "lock 1410", "unlock 0"]


def test_an_exception_puts_it_back(gpu) -> None:
    """Whatever ends the block."""
    with pytest.raises(ZeroDivisionError), ClockLock() as lock:
        lock.hold(300)
        raise ZeroDivisionError
    assert gpu.locked_mhz == 0


def test_it_is_noted_before_it_is_changed(gpu, monkeypatch) -> None:
    """A process that is killed between note and lock has said enough."""
    monkeypatch.setattr(clocks.Gpu, "lock_clock", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ClockLock().hold(900)
    assert [path.stem for path in gpu.notes] == [UUID]
    assert gpu.changes == []


def test_a_killed_owner_is_cleaned_up_after(gpu) -> None:
    """kill -9 leaves the lock; whoever comes next puts it back, once."""
    process = held_by_another()
    assert clocks.restore_stale() == ((), ())
    assert gpu.locked_mhz == 900
    kill(process)
    assert gpu.locked_mhz == 900
    done, failed = clocks.restore_stale()
    assert (len(done), failed) == (1, ())
    assert f"process {process.pid} had locked to 900 MHz" in done[0]
    assert (gpu.locked_mhz, gpu.notes) == (0, [])
    assert clocks.restore_stale() == ((), ())


def test_the_next_owner_takes_a_dead_ones_place(gpu) -> None:
    """Who locks the GPU himself puts back first what he finds."""
    kill(held_by_another())
    with ClockLock() as lock:
        lock.hold(300)
        assert gpu.locked_mhz == 300
    assert gpu.changes == ["lock 900", "unlock 0", "lock 300", "unlock 0"]


def test_a_living_owners_lock_is_not_taken(gpu) -> None:
    """The other process is named, and goes on holding it."""
    process = held_by_another()
    try:
        with pytest.raises(AcceleratorUnavailable, match=f"process {process.pid} has locked"):
            ClockLock().hold(300)
        assert "has locked the GPU's clock to 900 MHz" in str(clocks.lockable_clocks_mhz())
        assert gpu.changes == ["lock 900"]
    finally:
        kill(process)


def test_a_lock_of_a_past_boot_is_forgotten(gpu) -> None:
    """It ended with that boot: nothing is touched."""
    place = restore_journal.folder()
    with restore_journal.exclusive(place):
        past = restore_journal.JournalEntry(gpu=UUID, owner=process_identity.this_process().new_name(), boot="past",
                          clock_mhz=900, before=None)  # fmt: skip
        restore_journal.write(place, past)
    done, failed = clocks.restore_stale()
    assert (len(done), failed, gpu.changes, gpu.notes) == (1, (), [], [])


def test_what_cannot_be_put_back_stays_noted(gpu) -> None:
    """A driver that is away for now, or rights that are missing: the next one tries again."""
    kill(held_by_another())
    gpu.refuse(nvmlDeviceResetGpuLockedClocks=NO_PERMISSION)
    done, failed = clocks.restore_stale()
    assert done == ()
    assert "Insufficient Permissions" in failed[0]
    assert len(gpu.notes) == 1
    gpu.refuse()
    assert len(clocks.restore_stale().done) == 1


def test_what_is_no_note_is_left_alone(gpu, caplog) -> None:
    """A file of another version, say: it is logged and kept."""
    place = restore_journal.folder()
    place.mkdir(parents=True)
    (place / "other.json").write_text("{}")
    assert clocks.restore_stale() == ((), ())
    assert "not a record of a GPU" in caplog.text
    assert (place / "other.json").exists()


@pytest.mark.parametrize(
    ("failing", "text"),
    [
        ({"nvmlDeviceSetGpuLockedClocks": NO_PERMISSION}, "cannot be locked: Insufficient Perm"),
        ({"nvmlDeviceSetGpuLockedClocks": NOT_SUPPORTED,
          "nvmlDeviceSetApplicationsClocks": NOT_SUPPORTED}, "cannot be set: Not Supported"),
        ({"nvmlDeviceGetSupportedMemoryClocks": NOT_SUPPORTED}, "does not report its clocks"),
        ({"nvmlInitWithFlags": NO_DRIVER}, "no GPU responds through NVML: Driver Not Loaded"),
    ],
)  # fmt: skip
def test_what_the_gpu_refuses_is_one_line(gpu, failing, text) -> None:
    """No rights, no support, no driver: the reason is told, and nothing is left behind."""
    gpu.refuse(**failing)
    found = clocks.lockable_clocks_mhz()
    assert isinstance(found, str)
    assert text in found
    assert "\n" not in found
    assert (gpu.changes, gpu.notes) == ([], [])


def test_an_older_gpu_gets_application_clocks(gpu) -> None:
    """Where no clock can be locked, those of applications are set, and what they were is put back."""
    gpu.refuse(
        nvmlDeviceSetGpuLockedClocks=NOT_SUPPORTED, nvmlDeviceResetGpuLockedClocks=NOT_SUPPORTED
    )
    with ClockLock() as lock:
        lock.hold(900)
        assert gpu.applications_mhz == (2619, 900)
        lock.hold(300)
    assert gpu.applications_mhz == (2619, 1980)


def test_a_failed_change_keeps_what_is_held(gpu) -> None:
    """The old clock stays locked and noted."""
    with ClockLock() as lock:
        lock.hold(900)
        gpu.refuse(nvmlDeviceSetGpuLockedClocks=NO_PERMISSION)
        with pytest.raises(AcceleratorUnavailable):
            lock.hold(300)
        assert lock.clock_mhz == 900
        assert json.loads(gpu.notes[0].read_text())["clock_mhz"] == 900
    assert gpu.locked_mhz == 0


def test_an_unsupported_clock_is_refused_with_the_nearest(gpu) -> None:
    """1400 MHz is none of its clocks."""
    with pytest.raises(AcceleratorUnavailable, match="nearest of its 4 clocks is 1410 MHz"):
        ClockLock().hold(1400)
    assert gpu.changes == []


def test_the_lock_is_tried_where_it_is_offered(gpu) -> None:
    """What can be locked is known by locking it for a moment."""
    assert clocks.lockable_clocks_mhz() == CLOCKS_MHZ
    assert gpu.changes == ["lock 1980", "unlock 0"]
    assert gpu.notes == []


def test_a_folder_that_cannot_be_written_keeps_the_clock(gpu, tmp_path) -> None:
    """No note, no change."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(AcceleratorUnavailable, match="XDG_STATE_HOME"):
        ClockLock(file / "inside").hold(900)
    assert gpu.changes == []


def test_hidden_gpus_are_not_touched(gpu, monkeypatch) -> None:
    """CUDA_VISIBLE_DEVICES says which GPU is meant; here none is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides all GPUs" in str(clocks.lockable_clocks_mhz())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "no GPU 3 on this machine" in str(clocks.lockable_clocks_mhz())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID)
    assert clocks.lockable_clocks_mhz() == CLOCKS_MHZ


def test_an_end_waits_for_a_lock_that_is_being_made(gpu) -> None:
    """Closing from another thread leaves nothing locked."""
    lock = ClockLock()
    threads = [threading.Thread(target=lock.hold, args=(clock,)) for clock in CLOCKS_MHZ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    lock.close()
    assert (gpu.locked_mhz, gpu.notes) == (0, [])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_STATE_HOME": "/somewhere"}, "/somewhere/luthier/accelerator"),
        ({}, "/run/luthier/accelerator"
         if os.geteuid() == 0 else str(pathlib.Path.home() / ".local/state/luthier/accelerator")),
    ],
)  # fmt: skip
def test_where_the_notes_are(environ, expected) -> None:
    """One folder for each user; root's does not depend on how it became root."""
    assert str(restore_journal.folder(environ)) == expected


def test_a_folder_that_cannot_be_read_holds_nothing_up(tmp_path) -> None:
    """A server starts all the same: what is not there, or no folder, has no notes."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "absent", tmp_path / "file"):
        assert clocks.restore_stale(place) == ((), ())


def test_the_notes_of_a_user_without_a_home_are_his_own(tmp_path, monkeypatch) -> None:
    """In the temporary directory anybody can make a folder of that name first, and note what shall be put back."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = tmp_path / f"luthier-state-{os.geteuid()}"
    place = planted / "luthier" / "accelerator"
    place.mkdir(parents=True)
    planted.chmod(0o777)
    with pytest.raises(AcceleratorUnavailable, match=r"belongs to user .*XDG_STATE_HOME"):
        restore_journal.exclusive(place).__enter__()
    planted.chmod(0o700)
    with restore_journal.exclusive(place):
        assert restore_journal.all_of(place) == []
