"""What may be used of the machine: affinity and cgroup limits count."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys

from tuner.launching import machine


def test_limits_of_the_cgroup_count(tmp_path: pathlib.Path) -> None:
    """A quota of one core and a memory limit are what the machine has."""
    (tmp_path / "cpu.max").write_text("100000 100000", encoding="ascii")
    (tmp_path / "memory.max").write_text(str(256 << 20), encoding="ascii")
    facts = machine.read(cgroup=tmp_path)
    assert facts == machine.MachineFacts(cores=1, memory_mb=256)


def test_without_limits_the_machine_is_all_there_is(tmp_path: pathlib.Path) -> None:
    """No cgroup limit: the cores of the affinity and the memory of the host."""
    (tmp_path / "cpu.max").write_text("max 100000", encoding="ascii")
    facts = machine.read(cgroup=tmp_path)
    assert facts.cores == len(os.sched_getaffinity(0))
    assert facts.memory_mb > 64


def test_the_description_names_what_may_change_a_result() -> None:
    """Host, processor, kernel and versions are there."""
    facts = machine.describe(machine.read())
    assert {"name", "system", "cpu", "cores", "memory_mb"} <= set(facts["host"])
    assert {"python", "numpy", "optuna"} <= set(facts["versions"])


def test_what_is_free_is_what_the_machine_and_the_group_leave(tmp_path: pathlib.Path) -> None:
    """The less of both, in MiB; infinite where nobody tells."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1024 kB\nMemAvailable: 4194304 kB\n")
    group = tmp_path / "group"
    group.mkdir()
    assert machine.free_mb(cgroup=group, meminfo=meminfo) == 4096
    (group / "memory.max").write_text("2147483648\n")
    (group / "memory.current").write_text("1073741824\n")
    assert machine.free_mb(cgroup=group, meminfo=meminfo) == 1024
    (group / "memory.stat").write_text("anon 1\ninactive_file 536870912\nactive_file 7\n")
    assert machine.free_mb(cgroup=group, meminfo=meminfo) == 1536, "files in the cache are given up"
    assert machine.free_mb(cgroup=tmp_path, meminfo=tmp_path / "none") == math.inf


def test_what_processes_hold_is_theirs_alone() -> None:
    """A process that fills memory holds more; one that has ended holds nothing."""
    program = "print(flush=True); input(); filled = b'x' * (64 << 20); print(flush=True); input()"
    # A process of its own: the heap of this one may have 64 MiB free, which others of its tests filled.
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        before = machine.held_mb([child.pid])
        print(file=child.stdin, flush=True)
        child.stdout.readline()
        assert before + 48 < machine.held_mb([child.pid]) < before + 80
        print(file=child.stdin, flush=True)
    assert machine.held_mb([child.pid]) == 0
