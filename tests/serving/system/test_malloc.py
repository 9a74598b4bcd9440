"""What requests leave in the heap is given back when they are gone."""

import asyncio
import contextlib

import pytest

from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.app import ports
from serving.system import malloc

MIB = 1 << 20


@pytest.mark.parametrize(("size", "times"), [(16 * MIB, 1), (7 * MIB, 0)])
def test_the_heap_is_given_back_after_a_large_body(size, times, monkeypatch):
    """Once, when it is gone, and not while it is held; what small ones leave is used again soon."""
    given = []
    monkeypatch.setattr(ports, "_SWEEP_S", 0.01)
    monkeypatch.setattr(malloc, "trim", lambda: given.append(held.bytes))
    held = BufferedBytes()

    async def swept():
        sweeping = asyncio.create_task(ports.sweep((), ConnectionLimiter(10), held))
        held.take(size)
        await asyncio.sleep(0.05)
        held.free(size)
        await asyncio.sleep(0.1)
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping

    asyncio.run(swept())
    assert given == [0] * times
