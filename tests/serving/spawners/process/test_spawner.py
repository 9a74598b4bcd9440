"""Replicas as real processes: start, stop, every kind of end, and nothing left behind."""

import asyncio
import itertools
import os
import pathlib
import signal
import socket

import pytest
import pytest_asyncio

from serving import wire
from serving.errors import LimitsUnavailable, NotReady, ReplicaStartFailed
from serving.model_spec import ModelSpec
from serving.spawners.exit_status import ExitStatus
from serving.spawners.process.forkserver_client import ForkServerClient
from serving.spawners.process.spawner import ProcessSpawner
from serving.system.cgroups import manager
from serving.system.control_channel import ControlChannel

LIMITED = manager.probe()
needs_limits = pytest.mark.skipif(LIMITED.kind is None, reason=f"limits are {LIMITED.text}")
WAIT_S = 20.0
PYTHON = ModelSpec(name="m", version="1", kind="python", path=None)

MODELS = '''
import os

X = [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]


def _answer(inputs):
    return {"x": inputs["x"]}


class Model:
    """Does to its process what the first byte says."""

    inputs = outputs = X

    def predict_batch(self, inputs):
        what = inputs["x"][0, 0]
        if what == 1:
            self.eaten = bytearray(200 << 20)
            for at in range(0, len(self.eaten), 4096):
                self.eaten[at] = 1
        if what == 2:
            os.abort()
        if what == 3:
            os._exit(7)
        if what == 4:
            import time
            time.sleep(60)
        if what in (5, 6):
            child = os.fork()
            if not child:
                import time
                if what == 6:
                    os.setsid()
                with open(f"{__file__}.child", "w") as file:
                    file.write(f"{os.getpid()}\\n")
                time.sleep(600)
        if what == 7:
            os.killpg(0, 9)
        return {"x": inputs["x"]}
'''


@pytest.fixture(name="path")
def _path(tmp_path):
    file = tmp_path / "misbehaves.py"
    file.write_text(MODELS)
    return f"{file}:Model"


pytestmark = pytest.mark.asyncio(loop_scope="module")
numbers = itertools.count(1)


@pytest_asyncio.fixture(name="home", scope="module", loop_scope="module")
async def _home():
    home = ProcessSpawner()
    await home.open("python")
    yield home
    traces = [home._nest.directory, *home._nest.limits.directories]
    assert all(path.exists() for path in traces)
    await home.close()
    assert not any(path.exists() for path in traces)


async def _start(home, **limits_wanted):
    wanted = {"cpu": None, "memory_mb": None} | limits_wanted
    return await home.start(next(numbers), **wanted, ready_timeout_s=WAIT_S, spec=PYTHON)


async def _end(replica):
    async with asyncio.timeout(WAIT_S):
        return await replica.ended


def _is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def _talk(replica, converse, path):
    """A loaded conversation with a replica; blocking, from a thread."""

    def begin():
        talk = converse(replica.sock)
        assert talk.load("python", path).status == 0
        return talk

    return await asyncio.to_thread(begin)


async def test_a_replica_is_there_and_answers(home, converse, path, frame):
    """A started replica is a process, is connected, and has said HELLO and no more."""
    replica = await _start(home)
    assert _is_alive(replica.pid)
    assert not replica.sock.getblocking()
    talk = await _talk(replica, converse, path)
    request = frame(("x", "UINT8", (1, 2), b"\0a"))
    _, outcomes = await asyncio.to_thread(talk.infer, [request])
    assert outcomes[0][0].data == b"\0a"
    assert not replica.ended.done()
    replica.sock.close()
    assert (await _end(replica)).reason == "exit"
    assert not _is_alive(replica.pid)


async def test_kill_ends_what_is_stuck_in_its_model(home, converse, path, frame):
    """A replica whose model does not return is ended by kill, and its end says that we asked for it."""
    replica = await _start(home)
    talk = await _talk(replica, converse, path)
    talk.send([frame(("x", "UINT8", (1, 1), b"\4"))])
    replica.kill()
    ended = await _end(replica)
    assert (ended.reason, "as asked" in ended.text) == ("killed", True)
    replica.sock.close()


def _written(file):
    """The pid that a model's child has written; 0: not yet."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.endswith("\n") else 0


async def _ends_with_its_child(home, converse, path, frame, what):
    """Kill a replica whose model has started a process, and wait until nothing is left of both."""
    replica = await _start(home)
    talk = await _talk(replica, converse, path)
    await asyncio.to_thread(talk.infer, [frame(("x", "UINT8", (1, 1), bytes((what,))))])
    told = pathlib.Path(path.replace(":Model", ".child"))
    async with asyncio.timeout(WAIT_S):
        while not (child := _written(told)):
            await asyncio.sleep(0.01)
    assert _is_alive(child)
    replica.kill()
    assert (await _end(replica)).reason == "killed"
    async with asyncio.timeout(WAIT_S):
        while _is_alive(child):
            await asyncio.sleep(0.01)
    groups = [root / f"replica-{replica.worker}" for root in home._nest.limits.directories]
    assert not any(group.exists() for group in groups)
    replica.sock.close()


@pytest.mark.parametrize("what", [5, pytest.param(6, marks=needs_limits)])
async def test_what_a_model_has_started_ends_with_its_replica(home, converse, path, frame, what):
    """Also in a session of its own; its control group is removed."""
    await _ends_with_its_child(home, converse, path, frame, what)


async def test_what_a_model_has_started_ends_without_control_groups(
    monkeypatch, converse, path, frame
):
    """It is in the replica's process group."""
    monkeypatch.setattr(manager, "system_places", list)
    home = ProcessSpawner()
    await home.open("python")
    assert home.limits_text.startswith("not enforced")
    await _ends_with_its_child(home, converse, path, frame, 5)
    await home.close()


async def test_a_model_that_ends_its_process_group_ends_no_other(home, converse, path, frame):
    """Neither the template nor other replicas are in it."""
    other, replica = await _start(home), await _start(home)
    talk = await _talk(replica, converse, path)
    talk.send([frame(("x", "UINT8", (1, 1), b"\7"))])
    assert (await _end(replica)).reason == "killed"
    assert not other.ended.done()
    talk = await _talk(other, converse, path)
    _, outcomes = await asyncio.to_thread(talk.infer, [frame(("x", "UINT8", (1, 1), b"a"))])
    assert outcomes[0][0].data == b"a"
    for one in (replica, other):
        one.sock.close()


async def test_a_kill_of_what_ends_by_itself_claims_nothing(home):
    """A replica that somebody killed, and that is killed once more to be sure, was not killed by us."""
    replica = await _start(home)
    os.kill(replica.pid, signal.SIGKILL)
    replica.kill(asked=False)
    ended = await _end(replica)
    assert (ended.reason, "asked" in ended.text) == ("killed", False)
    replica.sock.close()


async def test_a_report_that_cannot_be_read_does_not_deafen_the_home(home, caplog):
    """A report about a replica that nobody knows is logged; the ends of others are still heard."""
    replica = await _start(home)
    home._nest.forker._order({"do": "start", "worker": 10**9, "socket": "/none", "procs": []})
    replica.kill()
    assert (await _end(replica)).reason == "killed"
    async with asyncio.timeout(WAIT_S):
        while "a report of the fork server hit an error" not in caplog.text:
            await asyncio.sleep(0.01)
    replica.sock.close()


async def test_kill_may_be_repeated(home):
    """Killing twice, and killing what has ended, does nothing more."""
    replica = await _start(home)
    replica.kill()
    replica.kill()
    assert (await _end(replica)).reason == "killed"
    replica.kill()
    replica.sock.close()


@pytest.mark.parametrize(
    ("phrase", "number", "reason", "text"),
    [
        ("kill -9 by somebody", signal.SIGKILL, "killed", "SIGKILL"),
        ("a crash", signal.SIGSEGV, "crash", "SIGSEGV"),
        ("a signal without a name", signal.SIGRTMIN + 6, "crash", f"signal {signal.SIGRTMIN + 6}"),
    ],
)
async def test_signals_are_told(home, phrase, number, reason, text):
    """How a replica ended is told by the signal, without ours being claimed."""
    replica = await _start(home)
    os.kill(replica.pid, number)
    ended = await _end(replica)
    assert ended.reason == reason
    assert text in ended.text
    assert "asked" not in ended.text
    replica.sock.close()


async def test_requests_to_end_are_left_to_the_gateway(home):
    """SIGTERM and SIGINT, which a service manager sends to all, do not end a replica or the template."""
    replica = await _start(home)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(replica.pid, number)
        os.kill(home._nest.forker.pid, number)
    replica.sock.close()
    assert await _end(replica) == ExitStatus(reason="exit", text="exited normally")


@pytest.mark.parametrize(
    ("phrase", "byte", "text"),
    [("abort", b"\2", "SIGABRT"), ("an exit code", b"\3", "exited with code 7")],
)
async def test_crashes_of_a_model_are_told(home, converse, path, frame, phrase, byte, text):
    """A model that takes its process down is a crash."""
    replica = await _start(home)
    talk = await _talk(replica, converse, path)
    talk.send([frame(("x", "UINT8", (1, 1), byte))])
    ended = await _end(replica)
    assert ended.reason == "crash"
    assert text in ended.text
    replica.sock.close()


async def test_garbage_ends_a_replica(home):
    """A replica that is sent garbage ends with an error code."""
    replica = await _start(home)
    await asyncio.get_running_loop().sock_sendall(replica.sock, b"GET / HTTP/1.1\r\n\r\n")
    ended = await _end(replica)
    assert ended.reason == "crash"
    assert "65" in ended.text
    replica.sock.close()


@pytest.mark.limits
@needs_limits
async def test_hunger_is_told(home, converse, path, frame):
    """A replica above its memory limit ends as oom, with its last usage kept."""
    replica = await _start(home, memory_mb=64)
    talk = await _talk(replica, converse, path)
    talk.send([frame(("x", "UINT8", (1, 1), b"\1"))])
    ended = await _end(replica)
    assert ended.reason == "oom"
    assert "limit 64 MiB" in ended.text
    assert 60 < replica.usage().peak_memory_mb <= 65
    replica.sock.close()


@pytest.mark.limits
@needs_limits
async def test_limits_change_live(home, converse, path):
    """Limits of a living replica are changed, usage is seen, and its groups end with it."""
    assert home.limits_text == "enforced"
    replica = await _start(home, cpu=0.5, memory_mb=64)
    await _talk(replica, converse, path)  # with a model it uses memory of its own
    await replica.set_limits(cpu=1.5, memory_mb=256)
    usage = replica.usage()
    assert usage.cpu_s > 0
    assert usage.peak_memory_mb > 0
    with pytest.raises(LimitsUnavailable):
        await replica.set_limits(cpu=1e6, memory_mb=1)
    groups = replica.group.directories
    assert all(group.exists() for group in groups)
    replica.sock.close()
    await _end(replica)
    assert not any(group.exists() for group in groups)
    assert replica.usage().cpu_s >= usage.cpu_s


async def test_many_start_together(home):
    """Replicas that are started at once are all there, each its own process."""
    replicas = await asyncio.gather(*(_start(home) for _ in range(5)))
    assert len({replica.pid for replica in replicas}) == 5
    for replica in replicas:
        replica.sock.close()
    assert [(await _end(replica)).reason for replica in replicas] == ["exit"] * 5


async def test_a_late_start_fails_in_time(home):
    """A replica that is not there in time is a timeout, and is ended."""
    with pytest.raises(ReplicaStartFailed, match="did not connect within") as caught:
        await home.start(next(numbers), cpu=None, memory_mb=None, ready_timeout_s=1e-6, spec=PYTHON)
    assert caught.value.reason == "timeout"


async def test_a_cancelled_start_leaves_nothing(home):
    """A start that is cancelled ends what it began."""
    for delay_s in (0.0, 0.001, 0.01):
        starting = asyncio.create_task(_start(home))
        await asyncio.sleep(delay_s)
        starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled():
            starting.result().sock.close()
    async with asyncio.timeout(WAIT_S):
        while home._replicas or home._finishing:
            await asyncio.sleep(0.01)


async def test_a_start_that_fails_before_it_is_ordered_leaves_nothing(home):
    """Where the replica's socket cannot be made, the home keeps neither its number nor its groups."""
    worker = next(numbers)
    path = home._nest.directory / f"{worker}.sock"
    path.touch()
    with pytest.raises(ReplicaStartFailed, match="no socket can be created"):
        await home.start(worker, cpu=None, memory_mb=None, ready_timeout_s=WAIT_S, spec=PYTHON)
    path.unlink()
    async with asyncio.timeout(WAIT_S):
        while home._finishing:
            await asyncio.sleep(0.01)
    assert worker not in home._replicas
    groups = [path / f"replica-{worker}" for path in home._nest.limits.directories]
    assert not any(group.exists() for group in groups)


async def test_a_killed_template_is_replaced(home):
    """The template's death ends its replicas; the next start makes a new one."""
    first = await _start(home)
    os.kill(home._nest.forker.pid, signal.SIGKILL)
    ended = await _end(first)
    assert ended.reason == "crash"
    assert "fork server" in ended.text
    first.sock.close()
    async with asyncio.timeout(WAIT_S):
        while _is_alive(first.pid):
            await asyncio.sleep(0.01)
    second = await _start(home)
    assert _is_alive(second.pid)
    second.sock.close()


async def test_a_closed_home_starts_nothing():
    """A home that was not opened, or was closed, says so; closing twice is fine."""
    home = ProcessSpawner()
    with pytest.raises(NotReady):
        await _start(home)
    await home.open("echo")
    replica = await _start(home)
    await home.close()
    assert (await _end(replica)).reason == "killed"
    await home.close()
    with pytest.raises(NotReady):
        await _start(home)
    replica.sock.close()


async def test_an_unknown_runtime_is_told_by_the_load(converse):
    """A kind whose module cannot be imported opens all the same; the load says what is missing."""
    home = ProcessSpawner()
    await home.open("fortran")
    replica = await _start(home)
    talk = converse(replica.sock)
    loaded = await asyncio.to_thread(talk.load, "fortran")
    assert loaded.status == wire.ActionStatus.LOAD_FAILED
    await home.close()
    replica.sock.close()


@pytest.mark.parametrize(
    ("phrase", "function", "threads"),
    [("a fork", "fork", False), ("a process of its own", "posix_spawn", True)],
)
async def test_a_replica_that_the_kernel_refuses_costs_no_other(
    tmp_path, monkeypatch, phrase, function, threads
):
    """No memory or process left for a replica: its start fails, the template and its others live."""
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os, sys, threading, time\n"
        f"allowed, real = [True, False, True], os.{function}\n"
        "def once_refused(*arguments):\n"
        "    if allowed.pop(0):\n"
        "        return real(*arguments)\n"
        "    raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')\n"
        "if 'serving.replica.forkserver' in ' '.join(sys.orig_argv):\n"
        f"    os.{function} = once_refused\n"
        f"    if {threads}:\n"
        "        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    home = ProcessSpawner()
    await home.open("echo")
    assert home._nest.forker.forks is not threads
    first = await _start(home)
    with pytest.raises(
        ReplicaStartFailed, match="the kernel refused to create the process"
    ) as caught:
        await _start(home)
    assert caught.value.reason == "crash"
    third = await _start(home)
    assert not first.ended.done()
    assert len(home._replicas) == 2
    await home.close()
    first.sock.close()
    third.sock.close()


async def test_a_runtime_with_threads_is_spawned(tmp_path, monkeypatch):
    """Where the template must not fork, replicas are processes of their own."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if 'serving.replica.forkserver' in ' '.join(sys.orig_argv):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    home = ProcessSpawner()
    await home.open("echo")
    assert not home._nest.forker.forks
    replica = await _start(home)
    replica.sock.close()
    assert await _end(replica) == ExitStatus(reason="exit", text="exited normally")
    await home.close()


async def test_orders_that_the_socket_does_not_take_hold_nobody():
    """They wait in the client, and arrive in their order."""
    ours, theirs = map(ControlChannel, socket.socketpair())
    client = ForkServerClient(ours, lambda *_event: None)
    for worker in range(2000):
        client.kill(worker)
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < 2000:
            found += theirs.receive_all()
            await asyncio.sleep(0)
    assert [order["worker"] for order in found] == list(range(2000))
    for end in (ours, theirs):
        end.sock.close()
