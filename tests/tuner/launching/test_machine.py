"""What may be used of the machine: affinity and cgroup limits count."""

from __future__ import annotations

import os
import pathlib

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
