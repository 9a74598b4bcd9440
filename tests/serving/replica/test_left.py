"""What is left of a killed gateway, and cannot be used: it is refused with a reason, and ended where it answers."""

import asyncio
import json
import pathlib
import tempfile

import pytest

from serving import __version__, owner
from serving.errors import NotReady
from serving.replica.as_process import ProcessHome
from serving.replica.template import SOCKET

LEFT = {"version": __version__, "forks": True, "limits": {}, "last": 0, "workers": []}


@pytest.fixture(name="directory")
def _directory():
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most some hundred letters
        directory = pathlib.Path(short) / owner.this_process().new_name()
        directory.mkdir()
        yield directory


async def _refused(directory, answer):
    """Why a template is not taken over that answers so, and what it was told."""
    told = asyncio.get_running_loop().create_future()

    async def met(reader, writer):
        writer.write(answer)
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
    reason, _ = asyncio.run(_refused(directory, b""))
    assert "no template answers" in reason
