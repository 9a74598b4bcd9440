"""Limits on the real kernel; skipped, with the reason, where this process may not make groups."""

import concurrent.futures
import contextlib
import pathlib
import subprocess
import sys
import time

import pytest

from serving.errors import LimitsUnavailable
from serving.system import process_identity
from serving.system.cgroups import manager

pytestmark = [
    pytest.mark.limits,
    pytest.mark.skipif(manager.probe().kind is None, reason=f"limits are {manager.probe().text}"),
]

MIB = 1024 * 1024
BURN = "while True: pass"
EAT = """
import sys, time
sys.stdin.readline()
eaten = bytearray(96 << 20)
for at in range(0, len(eaten), 4096):
    eaten[at] = 1
print("ate", flush=True)
time.sleep(60)
"""


@pytest.fixture(name="ours")
def _ours():
    ours = manager.CgroupManager(process_identity.this_process().new_name())
    assert ours.open().kind
    yield ours
    assert ours.close()
    assert not any(directory.exists() for directory in ours.directories)


@contextlib.contextmanager
def _member(group, program):
    """A Python process in a group, killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            for file in group.procs_files:
                file.write_text(str(process.pid))
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_quota_gives_its_share_of_a_core(ours):
    """Two busy processes under a quota of 0.2 get about a fifth of a core; the rest is throttled.

    A small quota, so that they reach it on a machine that has other work to do.
    """
    group = ours.group(1)
    group.set_limits(cpu=0.2, memory_mb=None)
    with _member(group, BURN), _member(group, BURN):
        time.sleep(0.3)
        before_s, before = time.monotonic(), group.usage()
        time.sleep(1.5)
        after = group.usage()
        passed_s = time.monotonic() - before_s
    share = (after.cpu_s - before.cpu_s) / passed_s
    assert 0.1 < share < 0.3
    assert after.throttled_s > before.throttled_s


def test_hunger_is_ended_and_counted(ours):
    """A process that takes more than its memory limit is killed, and the group knows why."""
    group = ours.group(1)
    group.set_limits(cpu=None, memory_mb=32)
    with _member(group, EAT) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == -9
    assert group.oom_kills() == 1
    assert group.usage().peak_memory_mb <= 33


def test_limits_change_while_a_process_runs(ours):
    """A limit is raised for a living process, and lowering it below its use is refused."""
    group = ours.group(1)
    group.set_limits(cpu=1, memory_mb=32)
    group.set_limits(cpu=2, memory_mb=256)
    with _member(group, EAT) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ate\n"
        with pytest.raises(LimitsUnavailable, match="cannot be limited to 16 MiB"):
            group.set_limits(cpu=0.5, memory_mb=16)
        assert process.poll() is None
        group.set_limits(cpu=None, memory_mb=None)


def test_a_group_with_processes_stays(ours):
    """A group is not removed from under a living process."""
    group = ours.group(1)
    with _member(group, BURN):
        assert not ours.remove(group)
    deadline_s = time.monotonic() + 10
    while not ours.remove(group):
        assert time.monotonic() < deadline_s


def test_a_group_is_made_once(ours):
    """A second group of one number is refused: it would share its counters."""
    ours.group(1)
    with pytest.raises(LimitsUnavailable, match="no control group can be created"):
        ours.group(1)


def test_what_a_killed_owner_left_is_removed():
    """Groups with processes in them are cleaned up once their owner is gone, and not before."""
    program = """
import os, sys, time
from serving.system import process_identity
from serving.system.cgroups import manager
ours = manager.CgroupManager(process_identity.this_process().new_name())
ours.open()
group = ours.group(1)
child = os.fork()
if not child:
    os.close(1)
    time.sleep(120)
for file in group.procs_files:
    file.write_text(str(child))
print(child, *ours.directories, flush=True)
time.sleep(120)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        child, *directories = process.stdout.readline().decode().split()
        paths = [pathlib.Path(directory) for directory in directories]
        assert not set(paths) & set(manager.cleanup_stale())
        assert all(path.exists() for path in paths)
        process.kill()
        process.wait()
    manager.cleanup_stale()
    deadline_s = time.monotonic() + 10
    while any(path.exists() for path in paths):  # a home that another test opens may be at it, too
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # its new parent reaps it when it likes
        while pathlib.Path("/proc", child, "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_stale_directories_are_removed(tmp_path):
    """Runtime directories of gone owners go; living owners', others' and links stay."""
    gone = process_identity.ProcessIdentity(
        pid=2**22 + 1, started_ticks=1, namespace=process_identity.this_process().namespace
    )
    stale, linked = tmp_path / gone.new_name(), tmp_path / gone.new_name()
    alive, other = tmp_path / process_identity.this_process().new_name(), tmp_path / "luthier-notes"
    for directory in (stale, alive, other):
        (directory / "inner").mkdir(parents=True)
    linked.symlink_to(other)
    assert manager.cleanup_stale(temporary=tmp_path, mounts=()) == [stale]
    assert sorted(tmp_path.iterdir()) == sorted([alive, other, linked])
    assert (other / "inner").exists()


def test_several_may_clean_up_the_same_at_once(tmp_path):
    """Servers that start together find the same remains; whoever comes second finds them gone, and goes on."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for turn in range(200):
            root = tmp_path / str(turn)
            for replica in range(3):
                (root / f"replica-{replica}").mkdir(parents=True)
            assert all(threads.map(manager.kill_and_remove, [root] * 4))
