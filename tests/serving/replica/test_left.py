"""What is left of a killed gateway, and cannot be used: it is refused with a reason, and ended where it answers."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess

import pytest

from serving import owner
from serving.errors import NotReady, ReplicaStartFailed
from serving.replica.as_process import ProcessHome
from serving.replica.forker import program_of
from serving.replica.left import LeftReplica
from serving.replica.limits import Limits
from serving.replica.template import SOCKET

SILENCE = b""


@pytest.fixture(autouse=True)
def _not_waited_for(monkeypatch):
    """The template that is told to end is this process, which does not: there is nothing to wait for."""
    monkeypatch.setattr("serving.replica.forker._LAST_S", 0.02)


def _left(**more):
    """What a template says that can be taken over, but for some of it."""
    said = {"program": program_of("echo"), "forks": True, "limits": {}, "last": 0, "workers": []}
    return json.dumps(said | more).encode() + b"\n"


async def _refused(directory, answer):
    """Why a template is not taken over that answers so, and what it was told."""
    told = asyncio.get_running_loop().create_future()

    async def met(reader, writer):
        await reader.readexactly(1)  # beside it comes the error output
        writer.write(answer)
        if answer is not SILENCE and not answer.endswith(b"\n"):
            writer.write_eof()
        told.set_result(await reader.readline())
        writer.close()

    server = await asyncio.start_unix_server(met, str(directory / SOCKET))
    async with server:
        home = ProcessHome()
        with pytest.raises(NotReady) as caught:
            await home.take_over("echo", directory)
        await home.close()
        return str(caught.value), await told


@pytest.mark.parametrize("name", ["version", "interpreter", "runtime", "environment"])
def test_a_template_of_another_program_is_ended(directory, name):
    """Its replicas, and all that it would fork later, run another program than this one."""
    other = program_of("echo") | {name: "0.0.0"}
    answer = _left(program=other)
    reason, told = asyncio.run(_refused(directory, answer))
    assert f"is of {name} 0.0.0, this is {program_of('echo')[name]}" in reason
    assert json.loads(told) == {"do": "end"}


def test_what_tells_programs_apart(monkeypatch, tmp_path):
    """A runtime, a variable, a folder in which modules are found; not what is new at each start of the same."""
    before = program_of("onnx")
    assert before["runtime"].startswith("onnxruntime")
    assert program_of("echo") != before
    monkeypatch.setenv("INVOCATION_ID", "another")
    monkeypatch.setenv("SHLVL", "77")
    assert program_of("onnx") == before
    with monkeypatch.context() as other:
        other.setenv("PYTHONPATH", str(tmp_path))
        assert program_of("onnx") != before
    with monkeypatch.context() as other:
        other.chdir(tmp_path)
        assert program_of("onnx") != before
    assert program_of("onnx") == before


@pytest.mark.parametrize("name", ["luthier-x", None])
def test_no_template(directory, name):
    """Neither where nothing listens, nor where it could not be one of ours."""

    async def scenario():
        home = ProcessHome()
        with pytest.raises(NotReady, match="no template"):
            await home.take_over("echo", directory.with_name(name) if name else directory)
        await home.close()

    asyncio.run(scenario())


def test_a_template_that_says_nothing(directory, monkeypatch):
    """It is not waited for for long."""
    monkeypatch.setattr("serving.replica.as_process._TAKE_OVER_S", 0.2)
    reason, _ = asyncio.run(_refused(directory, SILENCE))
    assert "no template answers" in reason


@pytest.mark.parametrize(
    "answer",
    [
        b'{"event": "left", "version": "0.1',
        b"[]\n",
        b"1\n",
        b'{"event": "left"}\n',
        _left(limits=None),
        _left(workers=[{"worker": 1}]),
        b"\xff" * 1000,
    ],
)
def test_a_template_that_talks_nonsense(directory, answer):
    """The server starts without it."""
    reason, _ = asyncio.run(_refused(directory, answer))
    assert "no template answers" in reason


@pytest.mark.parametrize("kind", ["another's", "others may write", "a link", "a file"])
def test_a_directory_that_is_not_this_users_alone(directory, kind):
    """Whoever made it anew in a folder for all, once its template had ended, is not even spoken to."""
    moved = directory.with_name("moved")
    if kind == "another's":
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        os.chown(directory, 65534, 65534)
    elif kind == "others may write":
        directory.chmod(0o770)
    else:
        directory.rename(moved)
        if kind == "a link":
            directory.symlink_to(moved)
        else:
            directory.touch(0o600)
    assert "not a directory of this user alone" in asyncio.run(_unmet(directory))


def test_a_template_that_has_ended(directory):
    """Its number may be another process's by now."""
    gone = dataclasses.replace(owner.this_process(), started_ticks=1)
    directory = directory.rename(directory.with_name(gone.new_name()))
    assert "has ended" in asyncio.run(_unmet(directory))


def test_another_process_in_the_templates_place(directory):
    """It is told nothing: who ends the template would end another process."""
    other = owner.of_process(os.getppid())
    directory = directory.rename(directory.with_name(other.new_name()))
    reason = asyncio.run(_unmet(directory))
    assert f"no template answers in {directory}: process {os.getpid()} does" in reason


async def _unmet(directory):
    """Why a template is not taken over; whoever listens in its place hears nothing."""
    heard = []

    async def met(reader, writer):
        heard.append(await reader.read())
        writer.close()

    home = ProcessHome()
    try:
        place = await asyncio.start_unix_server(met, str(directory / SOCKET))
    except NotADirectoryError:
        place = contextlib.nullcontext()
    async with place:
        with pytest.raises(NotReady) as caught:
            await home.take_over("echo", directory)
        await asyncio.sleep(0.05)
    await home.close()
    assert not any(heard)
    return str(caught.value)


def test_groups_of_others_are_not_taken(directory, tmp_path):
    """What it says of control groups must be groups that are named after it: limits are written there."""
    for root in (tmp_path / directory.name, pathlib.Path("/sys/fs/cgroup/other")):
        root.name == "other" or root.mkdir(exist_ok=True)
        limits = {"kind": "v2", "roots": {"unified": str(root)}, "reason": ""}
        answer = _left(limits=limits)
        reason, told = asyncio.run(_refused(directory, answer))
        assert f"{root} is no control group of {directory.name}" in reason
        assert json.loads(told) == {"do": "end"}


def test_a_replica_that_cannot_be_greeted_is_of_no_use():
    """It ended, or no descriptor is left for its socket: the others are taken."""

    async def scenario(error):
        async def greeted():
            raise error

        return await LeftReplica(None, {}, asyncio.create_task(greeted())).held(5.0)

    for error in (ReplicaStartFailed("crash", "it ended"), OSError("no descriptor")):
        assert asyncio.run(scenario(error)) is None


def test_the_end_of_a_replica_that_nobody_took(directory, caplog):
    """It was ending when its template was taken over: its group goes, and nothing else happens."""
    limits = Limits(directory.name)
    if limits.open().kind is None:
        pytest.skip(limits.support.text)
    group = limits.group(9)
    answer = _left(limits=limits.as_json())
    ended = json.dumps({"event": "ended", "worker": 9, "pid": 1, "signal": 9}).encode() + b"\n"

    async def scenario(sleeper):
        async def met(reader, writer):
            await reader.readexactly(1)
            writer.write(answer)
            await has_ended.wait()
            writer.write(ended)
            await reader.readline()
            writer.close()

        has_ended = asyncio.Event()
        home = ProcessHome()
        async with await asyncio.start_unix_server(met, str(directory / SOCKET)):
            await home.take_over("echo", directory)
            assert all(path.is_dir() for path in group.directories), "it is not empty yet"
            sleeper.kill()
            sleeper.wait()
            has_ended.set()
            async with asyncio.timeout(10):
                while any(path.is_dir() for path in group.directories):
                    await asyncio.sleep(0.01)
            await home.close()

    with subprocess.Popen(["sleep", "60"]) as sleeper:
        for procs in group.procs_files:
            procs.write_text(str(sleeper.pid))
        asyncio.run(scenario(sleeper))
    assert "met a fault" not in caplog.text
    assert not any(root.is_dir() for root in limits.directories)
