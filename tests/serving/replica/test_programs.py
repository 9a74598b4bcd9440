"""Replicas that are programs of their own: started, limited, told apart, and ended like the others."""

import asyncio
import itertools
import os
import signal
import stat
import sys

import pytest
import pytest_asyncio

from serving.errors import ReplicaStartFailed
from serving.model_spec import ModelSpec, Program
from serving.spawners.exit_status import ExitStatus
from serving.spawners.process.spawner import ProcessSpawner
from serving.system.cgroups import manager

LIMITED = manager.probe()
WAIT_S = 20.0

PROGRAM = """#!{python}
import os, socket, sys
from serving.replica import main_loop
from serving import wire

sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[-1])
if sys.argv[1] == "serve":
    sys.exit(main_loop.serve(sock))
if sys.argv[1] == "another":
    sock.sendall(wire.encode_hello(pid=os.getpid() + 1, monotonic_ns=0))
if sys.argv[1] == "nothing":
    sock.sendall(wire.encode_unloaded(1, 0, {{}}))
if sys.argv[1] == "plain":
    sock.sendall(wire.encode_hello(pid=os.getpid(), monotonic_ns=0, features=["windows", "new"]))
if sys.argv[1] == "leave":
    sys.exit(3)
if sys.argv[1] == "eat":
    eaten = bytearray(os.urandom(1 << 20) * 200)
sock.recv(1)
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")
numbers = itertools.count(1)


@pytest_asyncio.fixture(name="start", scope="module", loop_scope="module")
async def _start(tmp_path_factory):
    """Starts a program that behaves as a word says, or another program; all in one home."""
    folder = tmp_path_factory.mktemp("program")
    file = folder / "program"
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    home = ProcessSpawner()
    await home.open("command")

    async def start(word, program=None, memory_mb=None):
        return await home.start(
            next(numbers),
            cpu=None,
            memory_mb=memory_mb,
            ready_timeout_s=WAIT_S,
            spec=ModelSpec(
                name="m",
                version="1",
                kind="command",
                path=None,
                program=program or Program((str(file), word), folder),
            ),
        )

    yield start
    await home.close()


async def _end(replica):
    async with asyncio.timeout(WAIT_S):
        return await replica.ended


async def test_a_program_answers_in_its_own_words(start, converse):
    """The program is the replica: its process, its HELLO, its answers; it ends when its socket is closed."""
    replica = await start("serve")
    with open(f"/proc/{replica.pid}/cmdline", "rb") as file:  # noqa: ASYNC230, PTH123 - a file of the kernel
        assert b"serve" in file.read()
    assert "json" in replica.features
    talk = converse(replica.sock)
    assert (await asyncio.to_thread(talk.load, "echo")).status == 0
    replica.sock.close()
    assert await _end(replica) == ExitStatus(reason="exit", text="exited normally")


async def test_what_it_promises_is_known(start):
    """Features are those of its HELLO, also ones that nobody knows."""
    replica = await start("plain")
    assert replica.features == ("windows", "new")
    replica.kill()
    assert (await _end(replica)).reason == "killed"
    replica.sock.close()


async def test_requests_to_end_are_left_to_the_gateway(start):
    """A signal that a service manager sends to all does not end a program before it is drained."""
    replica = await start("serve")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(replica.pid, number)
    replica.sock.close()
    assert (await _end(replica)).reason == "exit"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("another", "must `exec` it"),
        ("nothing", "began with a UNLOADED"),
        ("leave", "exited with code 3"),
    ],
)
async def test_a_program_that_does_not_greet_is_no_replica(start, word, text):
    """Another process's HELLO, another message, or an end, is told as such."""
    with pytest.raises(ReplicaStartFailed, match=text) as caught:
        await start(word)
    assert caught.value.reason == "crash"


async def test_a_program_that_is_gone_is_told(start, tmp_path):
    """What cannot be executed is a failed start that points to the reason."""
    gone = Program((str(tmp_path / "gone"),), tmp_path)
    with pytest.raises(ReplicaStartFailed, match="its program cannot be started"):
        await start("gone", gone)


@pytest.mark.limits
@pytest.mark.skipif(LIMITED.kind is None, reason=f"limits are {LIMITED.text}")
async def test_limits_hold_for_programs(start):
    """A program that eats more than its memory ends as oom, at its start already."""
    with pytest.raises(ReplicaStartFailed, match="limit 64 MiB") as caught:
        await start("eat", memory_mb=64)
    assert caught.value.reason == "oom"
