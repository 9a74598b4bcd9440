"""Homes are made when they are needed, one per kind, and what keeps one from being made is one error."""

import asyncio
import errno

import pytest

from serving.deployment.spawner_registry import SpawnerRegistry
from serving.errors import ReplicaStartFailed
from serving.model_spec import ModelSpec, Program
from tests.fakes.replicas import FakeHome


def _card(kind, program=None):
    return ModelSpec(name="m", version="1", kind=kind, path=None, program=program)


def test_programs_share_a_home(tmp_path):
    """However many are deployed over the days, one template process serves them all."""

    async def scenario():
        homes = SpawnerRegistry(FakeHome)
        cards = [_card("command", Program((f"./{n}",), tmp_path / str(n))) for n in range(3)]
        found = [await homes.of(card) for card in [*cards, _card("echo")]]
        await homes.close()
        return found

    *programs, echo = asyncio.run(scenario())
    assert len({id(home) for home in programs}) == 1
    assert echo is not programs[0]


def test_a_home_that_finds_no_room_is_a_failed_start():
    """And the next one that is asked for is tried anew."""

    class Full(FakeHome):
        async def open(self, kind):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario():
        homes = SpawnerRegistry(iter([Full(), FakeHome()]).__next__)
        with pytest.raises(ReplicaStartFailed, match="No space left"):
            await homes.of(_card("echo"))
        await homes.of(_card("echo"))
        await homes.close()

    asyncio.run(scenario())
