"""What is left of a killed gateway, and cannot be used: it is refused with a reason, and ended where it answers."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile

import pytest

from serving import __version__, owner
from serving.errors import NotReady
from serving.replica.as_process import ProcessHome
from serving.replica.template import SOCKET

SILENCE = b""
LEFT = {"version": __version__, "forks": True, "limits": {}, "last": 0, "workers": []}


@pytest.fixture(name="directory")
def _directory():
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most some hundred letters
        directory = pathlib.Path(short) / owner.this_process().new_name()
        directory.mkdir(mode=0o700)
        yield directory


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


def test_a_template_of_another_version_is_ended(directory):
    """Its replicas run another program than this one."""
    answer = json.dumps(LEFT | {"version": "0.0.0"}).encode() + b"\n"
    reason, told = asyncio.run(_refused(directory, answer))
    assert f"is of version 0.0.0, this is {__version__}" in reason
    assert json.loads(told) == {"do": "end"}


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
        json.dumps(LEFT | {"limits": None}).encode() + b"\n",
        json.dumps(LEFT | {"workers": [{"worker": 1}]}).encode() + b"\n",
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
        answer = json.dumps(LEFT | {"limits": limits}).encode() + b"\n"
        reason, told = asyncio.run(_refused(directory, answer))
        assert f"{root} is no control group of {directory.name}" in reason
        assert json.loads(told) == {"do": "end"}
