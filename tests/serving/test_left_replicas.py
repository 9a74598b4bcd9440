"""A pool whose replicas a killed server left: which it takes, which it ends, and what becomes of them."""

import asyncio
import itertools

from serving.kept_profiles import KeptProfiles
from serving.replica.left import LeftReplica
from serving.replica.wire import HeldModel, HelloMessage
from serving.settings import ServingSettings
from serving.shared_pool import SharedPool
from tests.fakes.replicas import FakeHome, FakeReplica


def _settings(tmp_path, **more):
    values = {"scheduling.policy": "clockwork", "server.state_dir": str(tmp_path)}
    return ServingSettings().changed(values | more)


def _pool(settings, home):
    return SharedPool("echo", "clockwork", settings, home, itertools.count(10), KeptProfiles())


def _left(worker, home, kept, models=()):
    """A living replica that holds models of these numbers."""
    replica = FakeReplica(worker, home)
    held = tuple(HeldModel(one, f"m{one}", "1", "echo", None, None, 1) for one in models)

    async def greeted():
        return HelloMessage(1, replica.pid, (), 0, held)

    return LeftReplica(replica, kept, asyncio.create_task(greeted()))


async def _until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_fullest_is_taken_and_the_others_end_at_once(tmp_path):
    """Where there are more than settings want, and where one is not as they would have it."""

    async def scenario():
        settings, home = _settings(tmp_path), FakeHome()
        pool = _pool(settings, home)
        kept = pool.kept(settings)
        others = kept | {"page_mb": 77}
        everyone = [
            _left(1, home, kept, [1]),
            _left(2, home, kept, [2, 3]),
            _left(3, home, others, [4, 5, 6]),
        ]
        left = list(everyone)
        await pool.open(left)
        try:
            ended = [one.replica.ended.done() for one in everyone]
            return ended, left, [one["worker"] for one in pool.pool.members()], home.replicas
        finally:
            await pool.close()

    assert asyncio.run(scenario()) == ([True, False, True], [], [2], [])


def test_one_that_ends_before_it_is_given_work(tmp_path):
    """Its socket is closed, and another one takes its place."""

    async def scenario():
        settings, home = _settings(tmp_path), FakeHome()
        pool = _pool(settings, home)
        one = _left(1, home, pool.kept(settings), [1])
        await pool.open([one])
        try:
            one.replica.die()
            await _until(lambda: pool.pool.ready_count and home.replicas)
            assert one.replica.sock.fileno() == -1
            await pool.begin()
            assert [member["worker"] for member in pool.pool.members()] == [10]
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_a_pool_waits_for_the_models_that_its_replicas_hold(tmp_path):
    """It is not empty, though no model has come yet, until all that the start names have."""

    async def scenario():
        settings, home = _settings(tmp_path), FakeHome()
        pool = _pool(settings, home)
        await pool.open([_left(1, home, pool.kept(settings), [1])])
        before = pool.is_empty
        await pool.begin()
        after = pool.is_empty
        await pool.close()
        return before, after

    assert asyncio.run(scenario()) == (False, True)
