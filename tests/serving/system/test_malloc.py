"""What requests leave in the heap is given back when they are gone."""

import asyncio
import contextlib

import pytest

from serving.api.transport.buffered_bytes import Held
from serving.api.transport.connection_limiter import Door
from serving.app import server
from serving.system import malloc

MIB = 1 << 20


@pytest.mark.parametrize(("size", "times"), [(16 * MIB, 1), (7 * MIB, 0)])
def test_the_heap_is_given_back_after_a_large_body(size, times, monkeypatch):
    """Once, when it is gone, and not while it is held; what small ones leave is used again soon."""
    given = []
    monkeypatch.setattr(server, "_SWEEP_S", 0.01)
    monkeypatch.setattr(malloc, "give_back", lambda: given.append(held.bytes))
    held = Held()

    async def swept():
        sweeping = asyncio.create_task(server._sweep((), Door(10), held))
        held.take(size)
        await asyncio.sleep(0.05)
        held.free(size)
        await asyncio.sleep(0.1)
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping

    asyncio.run(swept())
    assert given == [0] * times
