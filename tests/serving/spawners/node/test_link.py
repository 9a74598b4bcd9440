"""Connections between a gateway and a node agent: which of them end by silence."""

import asyncio
import socket

import pytest

from serving.spawners.node import link

WAIT_S = 30.0
TIMEOUT_S = 0.2
SENT = bytes(16 << 20)
"""More than the buffers of both sides hold."""


async def _dial(purpose, listener):
    """A connection whose other side has answered, and reads no more."""
    loop = asyncio.get_running_loop()
    dialling = asyncio.create_task(link.dial(*listener.getsockname(), purpose, timeout_s=TIMEOUT_S))
    accepted, _ = await loop.sock_accept(listener)
    assert await link.read_line(accepted) == f"luthier 1 {purpose}"
    await link.answer(accepted)
    return await dialling, accepted


async def test_a_replica_that_does_not_read_is_not_lost():
    """It computes, or loads, longer than a machine may be silent; the machine itself must answer."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        control, unread = await _dial("control", listener)
        others = [await _dial(purpose, listener) for purpose in ("replica x", "files")]
    sending = [asyncio.create_task(loop.sock_sendall(sock, SENT)) for sock, _ in others]
    try:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(TimeoutError):
                await loop.sock_sendall(control, SENT)
            for _, accepted in others:
                left = len(SENT)
                while left > 0:
                    data = await loop.sock_recv(accepted, left)
                    assert data
                    left -= len(data)
            await asyncio.gather(*sending)
    finally:
        for sock in (control, unread, *(each for pair in others for each in pair)):
            sock.close()
