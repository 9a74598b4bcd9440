"""Names tell their owner, and whether it still lives."""

import subprocess
import sys

import pytest

from serving.system import process_identity


def test_names_tell_their_owner():
    """A name made by this process leads back to it, and this process is alive."""
    this = process_identity.this_process()
    assert process_identity.of(this.new_name()) == this
    assert this.new_name() != this.new_name()
    assert not this.is_gone()


@pytest.mark.parametrize(
    "name",
    [
        "luthier",
        "luthier-1",
        "luthier-1-2-3",
        "luthier-x-2-3-01234567",
        "luthier-99999999999999999999-0-3-01234567",
    ],
)
def test_other_names_have_no_owner(name):
    """What does not look like ours is not ours."""
    assert process_identity.of(name) is None


def test_an_ended_process_is_gone():
    """The owner of a name is gone when its process is, reaped or not."""
    program = "from serving.system import process_identity; print(process_identity.this_process().new_name())"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        name = process.stdout.read().decode().strip()  # read to its end: the process has ended
        maker = process_identity.of(name)
        assert maker.pid == process.pid
        process.wait()
    assert maker.is_gone()


def test_a_later_process_of_the_same_number_is_another():
    """A pid that was given out again does not keep its former owner alive."""
    this = process_identity.this_process()
    former = process_identity.ProcessIdentity(
        pid=this.pid, started_ticks=this.started_ticks - 1, namespace=this.namespace
    )
    assert former.is_gone()


def test_processes_of_other_namespaces_are_not_judged():
    """What another container made is left alone: its processes cannot be seen from here."""
    this = process_identity.this_process()
    assert not process_identity.ProcessIdentity(
        pid=2**22 + 1, started_ticks=1, namespace=this.namespace + 1
    ).is_gone()
    assert process_identity.ProcessIdentity(
        pid=2**22 + 1, started_ticks=1, namespace=this.namespace
    ).is_gone()
