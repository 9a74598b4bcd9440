"""What every home of replicas promises: one suite for processes, containers and other machines."""

import asyncio
import dataclasses
import functools
import itertools
import os
import pathlib

import pytest
import pytest_asyncio

from serving.errors import LimitsUnavailable, NotReady, ReplicaStartFailed
from serving.model_spec import ModelSpec, Program
from serving.spawners.docker.spawner import DockerSpawner
from serving.spawners.process.spawner import ProcessSpawner
from serving.system.cgroups import manager
from serving.wire import ActionStatus
from serving.wire.staged_path import staged_path
from tests.fakes.docker_engine import needs_docker
from tests.fakes.local_cluster import node_spawner

LIMITED = manager.probe()
needs_limits = pytest.mark.skipif(LIMITED.kind is None, reason=f"limits are {LIMITED.text}")
WAIT_S = 30.0
LOCAL = [
    pytest.param(lambda _: ProcessSpawner(), id="process"),
    pytest.param(lambda _: DockerSpawner(), id="docker", marks=needs_docker),
]
HOMES = [
    *LOCAL,
    pytest.param(functools.partial(node_spawner, tls=False), id="node"),
    pytest.param(functools.partial(node_spawner, tls=True), id="node-tls"),
]
MODELS = '''
import os
import sys

X = [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]


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
            sys.stderr.write("cannot go on\\n")
            sys.stderr.flush()
            os._exit(7)
        if what == 4:
            os._exit(255)
        return {"x": inputs["x"]}
'''
LATER = '''
import pathlib

X = [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]


class Model:
    """Answers with the word that lies beside it."""

    inputs = outputs = X

    def __init__(self, path):
        self.word = [list(path.with_name("word").read_bytes())]

    def predict_batch(self, inputs):
        return {"x": self.word}
'''
PROGRAM = "#!/bin/sh\necho no wire here >&2\nexit 9\n"
numbers = itertools.count(1)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(name="card", scope="module")
def _card(tmp_path_factory):
    """A model in a folder that others may read, as a container's user is another."""
    folder = tmp_path_factory.mktemp("model")
    _readable(folder)
    file = folder / "misbehaves.py"
    file.write_text(MODELS)
    return ModelSpec(
        name="m", version="1", kind="python", path=file.with_name("misbehaves.py:Model")
    )


def _readable(folder):
    for path in (folder, *list(folder.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)


@pytest_asyncio.fixture(name="home", scope="module", loop_scope="module", params=HOMES)
async def _home(request, tmp_path_factory):
    home = request.param(tmp_path_factory.mktemp("artefacts"))
    await home.open("python")
    yield home
    await home.close()


async def _start(home, card, **limits_wanted):
    wanted = {"cpu": None, "memory_mb": None} | limits_wanted
    return await home.start(next(numbers), **wanted, ready_timeout_s=WAIT_S, spec=card)


async def _end(replica):
    async with asyncio.timeout(WAIT_S):
        return await replica.ended


async def _talk(replica, converse, card):
    """A loaded conversation with a replica; blocking, from a thread."""

    def begin():
        talk = converse(_socket(replica))
        loaded = talk.load("python", staged_path(card.path, replica.root_of(None)))
        assert loaded.status == 0, loaded
        return talk

    return await asyncio.to_thread(begin)


def _socket(replica):
    """What a gateway talks to; blocking."""
    context = getattr(replica, "tls", None)
    if context is None:
        return replica.sock
    replica.sock.settimeout(WAIT_S)
    replica.set_socket(context.wrap_socket(replica.sock, server_hostname="luthier"))
    return replica.sock


async def test_a_replica_answers_and_ends_with_its_socket(home, card, converse, frame):
    """It is connected, has said HELLO and no more, answers, and ends in order when its socket is closed."""
    replica = await _start(home, card)
    assert replica.features
    assert not replica.sock.getblocking()
    talk = await _talk(replica, converse, card)
    request = frame(("x", "UINT8", (1, 2), b"\0a"))
    _, (outcome,) = await asyncio.to_thread(talk.infer, [request])
    assert bytes(outcome[0].data) == b"\0a"
    replica.sock.close()
    assert (await _end(replica)).reason == "exit"


async def test_models_come_to_a_replica_that_runs(home, card, converse, frame, tmp_path):
    """What is lent after its start it can load, with what lies beside it; what is lent anew is what there is then."""
    _readable(tmp_path)
    (tmp_path / "shout.py").write_text(LATER)
    (tmp_path / "word").write_text("one")
    later = ModelSpec(
        name="l", version="1", kind="python", path=pathlib.Path(f"{tmp_path}/shout.py:Model")
    )
    replica = await _start(home, None)
    roots = []

    async def answer(number, model):
        roots.append(await home.stage(model))
        path = staged_path(model.path, replica.root_of(roots[-1]))
        loaded = await asyncio.to_thread(talk.load, "python", path, model=number)
        assert loaded.status == 0, loaded
        request = frame(("x", "UINT8", (1, 2), b"\0a"))
        _, (outcome,) = await asyncio.to_thread(talk.infer, [request], model=number)
        return bytes(outcome[0].data)

    talk = converse(await asyncio.to_thread(_socket, replica))
    assert await answer(1, card) == b"\0a"
    assert await answer(2, later) == b"one"
    (tmp_path / "new").write_text("another")
    (tmp_path / "new").replace(tmp_path / "word")
    assert await answer(3, later) == b"another"
    for root in roots:
        await home.unstage(root)
    if isinstance(home, DockerSpawner):
        loaded = await asyncio.to_thread(
            talk.load, "python", staged_path(later.path, roots[1]), model=4
        )
        assert loaded.status == ActionStatus.LOAD_FAILED
    replica.sock.close()
    assert (await _end(replica)).reason == "exit"


async def test_what_is_not_there_cannot_be_lent(home, card):
    """It is one line that names the file, and nothing of the model is left."""
    if isinstance(home, ProcessSpawner):
        pytest.skip("it lends nothing")
    gone = dataclasses.replace(card, sample=pathlib.Path("/nowhere/samples.npz"))
    with pytest.raises(ReplicaStartFailed, match=r"/nowhere/samples\.npz") as caught:
        await home.stage(gone)
    assert "\n" not in str(caught.value)
    if isinstance(home, DockerSpawner):
        assert not list(home._nest.shelf.folder.iterdir())


async def test_what_nobody_waited_for_is_not_kept(home, card):
    """Who is cancelled while files are laid out has been lent nothing."""
    if not isinstance(home, DockerSpawner):
        pytest.skip("it lends nothing")
    first = await home.stage(card)
    await home.unstage(first)
    for _ in range(20):
        lending = asyncio.create_task(home.stage(card))
        await asyncio.sleep(0)
        lending.cancel()
        await asyncio.wait({lending})
        assert lending.cancelled()
    async with asyncio.timeout(WAIT_S):
        mine = 0
        last = first
        while int(last.name) - int(first.name) - mine < 20:  # else one has not begun
            last = await home.stage(card)
            mine += 1
            await home.unstage(last)
        while list(home._nest.shelf.folder.iterdir()):
            await asyncio.sleep(0.01)


async def test_a_kill_that_was_asked_for_is_reported_as_one(home, card):
    """`kill` ends it, may be called twice, and is the reason."""
    replica = await _start(home, card)
    replica.kill()
    replica.kill()
    assert (await _end(replica)).reason == "killed"
    replica.kill()
    replica.sock.close()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (b"\2", "ended by signal"),
        (b"\3", "exited with code 7"),
        (b"\4", "exited with code 255"),
    ],
    ids=["abort", "exit", "the largest code"],
)
async def test_a_crash_is_reported_with_its_cause(home, card, converse, frame, what, text):
    """A signal or an exit code is told from a kill."""
    replica = await _start(home, card)
    talk = await _talk(replica, converse, card)
    await asyncio.to_thread(talk.send, [frame(("x", "UINT8", (1, 1), what))])
    ended = await _end(replica)
    assert ended.reason == "crash"
    assert text in ended.text
    replica.sock.close()


@pytest.mark.limits
@needs_limits
async def test_out_of_memory_is_reported_as_such(home, card, converse, frame):
    """A model that needs more than its 64 MiB is killed by the kernel, and the text names the limit."""
    replica = await _start(home, card, memory_mb=64)
    talk = await _talk(replica, converse, card)
    await asyncio.to_thread(talk.send, [frame(("x", "UINT8", (1, 1), b"\1"))])
    ended = await _end(replica)
    assert ended.reason == "oom"
    assert "limit 64 MiB" in ended.text
    assert "replica.memory_mb" in ended.text
    replica.sock.close()


@pytest.mark.limits
@needs_limits
async def test_limits_change_live_and_usage_is_seen(home, card, converse):
    """Both limits of a living replica are changed, CPU is lifted, and what is impossible is refused."""
    replica = await _start(home, card, cpu=0.5, memory_mb=64)
    assert home.limits_text == "enforced"
    await _talk(replica, converse, card)  # with a model it uses memory of its own
    await replica.set_limits(cpu=1.5, memory_mb=256)
    await replica.set_limits(cpu=None, memory_mb=256)
    await replica.set_limits(cpu=0.75, memory_mb=320)
    with pytest.raises(LimitsUnavailable) as caught:
        await replica.set_limits(cpu=0.75, memory_mb=1)
    assert "\n" not in str(caught.value)
    usage = replica.usage()
    assert usage.cpu_s > 0
    assert usage.peak_memory_mb > 0
    assert usage.throttled_s is not None
    replica.kill()
    await _end(replica)
    assert replica.usage().cpu_s >= usage.cpu_s
    replica.sock.close()


async def test_many_start_together(home, card):
    """Replicas that are started at once are all there, each its own process."""
    replicas = await asyncio.gather(*(_start(home, card) for _ in range(4)))
    assert len({replica.pid for replica in replicas}) == 4
    for replica in replicas:
        replica.sock.close()
    ends = await asyncio.gather(*map(_end, replicas))
    assert {ended.reason for ended in ends} == {"exit"}


async def test_a_start_that_takes_too_long_is_given_up(home, card):
    """The time that is left is the reason, and the knob is named."""
    with pytest.raises(ReplicaStartFailed, match=r"replica\.ready_timeout_s") as caught:
        await home.start(next(numbers), cpu=None, memory_mb=None, ready_timeout_s=1e-4, spec=card)
    assert caught.value.reason == "timeout"


async def test_a_cancelled_start_leaves_nothing(home, card):
    """Whoever cancels a start gets no replica, and the home has none."""
    start = asyncio.create_task(_start(home, card))
    await asyncio.sleep(0.001)
    start.cancel()
    await asyncio.wait({start})
    if not start.cancelled():
        start.result().sock.close()
    async with asyncio.timeout(WAIT_S):
        while home._replicas:
            await asyncio.sleep(0.01)


async def test_a_program_that_does_not_speak_the_wire_is_refused(home, tmp_path):
    """What ends before it says HELLO is a failed start, with its exit code."""
    if not isinstance(home, DockerSpawner):
        pytest.skip(
            "programs have a home of their own kind: tests/serving/replica/test_programs.py"
        )
    _readable(tmp_path)
    file = tmp_path / "program"
    file.write_text(PROGRAM)
    file.chmod(0o755)
    program = Program((str(file),), tmp_path)
    card = ModelSpec(name="p", version="1", kind="command", path=None, program=program)
    with pytest.raises(ReplicaStartFailed, match="code 9: last output: no wire here"):
        await _start(home, card)


@pytest.mark.parametrize("make", HOMES)
async def test_a_closed_home_starts_nothing(make, card, tmp_path):
    """Before it is open and after it was closed a home refuses; closing twice is harmless."""
    home = make(tmp_path)
    with pytest.raises(NotReady):
        await _start(home, card)
    await home.open("echo")
    replica = await _start(home, ModelSpec(name="e", version="1", kind="echo", path=None))
    await home.close()
    await home.close()
    assert (await _end(replica)).reason == "killed"
    replica.sock.close()
    with pytest.raises(NotReady):
        await _start(home, card)


@pytest.mark.parametrize("make", LOCAL)
async def test_a_closed_home_leaves_no_folder(make, tmp_path):
    """The folder of its sockets is gone with it."""
    home = make(tmp_path)
    await home.open("echo")
    folder = home._nest.directory
    assert os.path.isdir(folder)  # noqa: PTH112, ASYNC240
    await home.close()
    assert not os.path.exists(folder)  # noqa: PTH110, ASYNC240
