"""Limits by control groups of version 2, on a tree of files shaped like the kernel's."""

import errno
import os
import pathlib
import shutil

import pytest

from serving.errors import LimitsUnavailable
from serving.system.cgroups.cgroup import CgroupFiles, Hierarchy, Usage
from serving.system.cgroups.manager import CgroupManager

MIB = 1024 * 1024


class ShapedTree(CgroupFiles):
    """Makes what the kernel makes: files in a new group, by what its parent hands down."""

    def __init__(self, root, *, controllers="cpu memory", swap=True):
        self.swap = swap
        self.make(root, controllers)

    def make(self, directory, controllers=None):
        """A group with its files."""
        directory.mkdir()
        if controllers is None:
            controllers = (directory.parent / "cgroup.subtree_control").read_text().strip()
        files = {
            "cgroup.controllers": controllers,
            "cgroup.subtree_control": "",
            "cgroup.procs": "",
            "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nthrottled_usec 250000\n",
        }
        if "cpu" in controllers:
            files["cpu.max"] = "max 100000\n"
        if "memory" in controllers:
            files |= {
                "memory.max": "max\n",
                "memory.current": str(8 * MIB),
                "memory.peak": f"{12 * MIB}\n",
                "memory.events": "low 0\noom 1\noom_kill 0\n",
            }
            if self.swap:
                files["memory.swap.max"] = "max\n"
        for name, text in files.items():
            (directory / name).write_text(text)

    def remove(self, directory):
        """The kernel removes a group's files with it, but no group with processes or subgroups."""
        if (directory / "cgroup.procs").read_text() or any(p.is_dir() for p in directory.iterdir()):
            raise OSError(errno.EBUSY, "busy")
        shutil.rmtree(directory)

    def write(self, file, text):
        """The kernel takes no controllers where processes are, and shows +cpu as cpu."""
        if file.name == "cgroup.subtree_control":
            if (file.parent / "cgroup.procs").read_text():
                raise LimitsUnavailable(f"{file} does not accept {text!r}: Device or resource busy")
            text = text.replace("+", "")
        super().write(file, text)


@pytest.fixture(name="root")
def _root(tmp_path):
    return tmp_path / "cgroup"


def _place(*directories):
    return [Hierarchy(kind="v2", parents={"unified": directory}) for directory in directories]


def _open(root, tree, **where):
    limits = CgroupManager("luthier-test", tree)
    support = limits.open(_place(root), **where)
    assert support.kind == "v2", support.reason
    return limits


def test_limits_are_written_and_read_back(root):
    """CPU becomes a quota per 100 ms, memory bytes, swap nothing; None takes the limits away."""
    limits = _open(root, ShapedTree(root))
    group = limits.group(3)
    directory = root / "luthier-test" / "replica-3"
    group.set_limits(cpu=0.5, memory_mb=64)
    assert (directory / "cpu.max").read_text() == "50000 100000"
    assert (directory / "memory.max").read_text() == str(64 * MIB)
    assert (directory / "memory.swap.max").read_text() == "0"
    group.set_limits(cpu=None, memory_mb=None)
    assert (directory / "cpu.max").read_text() == "max 100000"
    assert (directory / "memory.max").read_text() == "max"
    assert (directory / "memory.swap.max").read_text() == "max"
    assert group.procs_files == (directory / "cgroup.procs",)


class Stubborn(ShapedTree):
    """Takes no more of some values."""

    refused = ()

    def write(self, file, text):
        if (file.name, text) in self.refused:
            raise LimitsUnavailable(f"{file} does not accept {text!r}")
        super().write(file, text)


@pytest.mark.parametrize(
    ("phrase", "refused", "cpu"),
    [
        ("the second limit", [("memory.swap.max", "0")], "50000 100000"),
        (
            "and the way back",
            [("memory.swap.max", "0"), ("cpu.max", "50000 100000")],
            "200000 100000",
        ),
    ],
)
def test_refused_limits_are_put_back_each_for_itself(root, phrase, refused, cpu):
    """When a limit is refused half-way, the others are as before, whatever else cannot be put back."""
    tree = Stubborn(root)
    group = _open(root, tree).group(1)
    group.set_limits(cpu=0.5, memory_mb=None)
    tree.refused = refused
    with pytest.raises(LimitsUnavailable, match=r"memory.swap.max does not accept"):
        group.set_limits(cpu=2, memory_mb=64)
    directory = root / "luthier-test" / "replica-1"
    assert (directory / "cpu.max").read_text() == cpu
    assert (directory / "memory.max").read_text() == "max"


def test_a_kernel_without_swap_accounting_will_do(root):
    """Where there is no file for swap, the memory limit stands alone."""
    group = _open(root, ShapedTree(root, swap=False)).group(1)
    group.set_limits(cpu=1, memory_mb=16)
    assert not (root / "luthier-test" / "replica-1" / "memory.swap.max").exists()


def test_usage_is_read(root):
    """Peak memory, CPU time, throttled time and kills come from the kernel's files."""
    group = _open(root, ShapedTree(root)).group(1)
    assert group.usage() == Usage(peak_memory_mb=12, cpu_s=1.5, throttled_s=0.25)
    assert group.oom_kills() == 0
    events = root / "luthier-test" / "replica-1" / "memory.events"
    events.write_text("oom 1\noom_kill 2\n")
    assert group.oom_kills() == 2


def test_unknown_usage_is_none(root):
    """What the kernel does not tell is None, not 0."""
    group = _open(root, ShapedTree(root)).group(1)
    for name in ("memory.peak", "cpu.stat"):
        (root / "luthier-test" / "replica-1" / name).unlink()
    assert group.usage() == Usage()


def test_memory_is_not_lowered_below_use(root):
    """A limit below what is used is refused before the kernel kills for it; the old ones hold."""
    group = _open(root, ShapedTree(root)).group(1)
    group.set_limits(cpu=1, memory_mb=64)
    with pytest.raises(LimitsUnavailable, match="uses 8 MiB cannot be limited to 4 MiB"):
        group.set_limits(cpu=2, memory_mb=4)
    directory = root / "luthier-test" / "replica-1"
    assert (directory / "memory.max").read_text() == str(64 * MIB)
    assert (directory / "cpu.max").read_text() == "100000 100000"


def test_what_the_kernel_did_not_take_is_told(root):
    """A limit that reads otherwise than it was written is an error."""

    class Rounding(ShapedTree):
        def write(self, file, text):
            super().write(file, "1000 100000" if file.name == "cpu.max" else text)

    limits = CgroupManager("luthier-test", Rounding(root))
    support = limits.open(_place(root))
    assert support.kind is None
    assert "reads 1000 100000" in support.reason
    assert list(root.glob("luthier*")) == []


def test_the_way_leads_up_past_groups_with_processes(root):
    """A group with processes hands nothing down, so the one above it is taken."""
    tree = ShapedTree(root)
    tree.write(root / "cgroup.subtree_control", "+cpu +memory")
    own = root / "own"
    tree.make(own)
    (own / "cgroup.procs").write_text("1\n")
    limits = CgroupManager("luthier-test", tree)
    assert limits.open(_place(own, root)).kind == "v2"
    assert limits.directories == (root / "luthier-test",)
    assert list(own.glob("luthier*")) == []


@pytest.mark.parametrize(
    ("phrase", "controllers", "procs", "reason"),
    [
        ("a mount without controllers", "", "", "does not offer the controller cpu and memory"),
        ("a mount without memory", "cpu", "", "controller memory"),
        ("only a group with processes", "cpu memory", "1\n", "busy"),
    ],
)
def test_no_place_is_told(root, phrase, controllers, procs, reason):
    """Where no group can be made, there is a reason, no limits, and nothing left behind."""
    tree = ShapedTree(root, controllers=controllers)
    (root / "cgroup.procs").write_text(procs)
    limits = CgroupManager("luthier-test", tree)
    support = limits.open(_place(root))
    assert support.kind is None
    assert reason in support.reason
    assert support.text.startswith("not enforced: ")
    assert limits.group(1) is None
    assert limits.directories == ()
    assert limits.close()
    assert [path for path in root.iterdir() if path.is_dir()] == []


def test_a_system_without_groups_is_told():
    """Without any place the reason says so."""
    limits = CgroupManager("luthier-test")
    assert "no control groups" in limits.open([]).reason


def test_a_missing_right_is_told(root):
    """A directory that may not be written is a reason, not an error."""

    class Forbidden(ShapedTree):
        def make(self, directory, controllers=None):
            if controllers is None:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
            super().make(directory, controllers)

    assert (
        "Permission denied"
        in CgroupManager("luthier-test", Forbidden(root)).open(_place(root)).reason
    )


def test_what_is_read_only_is_told_at_once(root):
    """In a container nothing can be made or removed, which is no reason to wait for a removal."""

    class ReadOnly(ShapedTree):
        def make(self, directory, controllers=None):
            if controllers is None:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))
            super().make(directory, controllers)

        def remove(self, directory):
            removals.append(directory)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))

    removals = []
    limits = CgroupManager("luthier-test", ReadOnly(root))
    assert "Read-only file system" in limits.open(_place(root)).reason
    assert len(removals) == 1, "not tried again and again"


def test_groups_are_removed(root):
    """An empty group goes, one with processes stays until they are gone."""
    limits = _open(root, ShapedTree(root))
    group = limits.group(1)
    procs = root / "luthier-test" / "replica-1" / "cgroup.procs"
    procs.write_text("1\n")
    assert not limits.remove(group)
    procs.write_text("")
    assert limits.remove(group)
    assert limits.remove(group)
    limits.group(2)
    assert limits.close()
    assert list(root.glob("luthier*")) == []


def test_the_kernels_files_are_not_made(tmp_path):
    """Writing to a file that the kernel did not make is an error: the controller is not there."""
    with pytest.raises(LimitsUnavailable, match="No such file"):
        CgroupFiles().write(tmp_path / "cpu.max", "1 2")
    assert list(pathlib.Path(tmp_path).iterdir()) == []
