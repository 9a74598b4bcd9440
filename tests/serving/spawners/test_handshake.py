"""The first words of a replica: a connection is never lost between the accepting and whoever waits for it."""

import asyncio
import socket

import pytest
import uvloop

from serving.spawners import handshake


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("steps", range(6))
def test_who_is_cancelled_leaves_the_connection_or_has_it(tmp_path, loop, steps):
    """However many steps of the loop lie between the connection and the cancelling."""

    async def cancelled():
        with (
            handshake.listen(tmp_path / "gateway.sock") as listener,
            socket.socket(socket.AF_UNIX) as replica,
        ):
            accepting = asyncio.create_task(handshake.accept(listener))
            await asyncio.sleep(0)
            replica.connect(str(tmp_path / "gateway.sock"))
            for _ in range(steps):
                await asyncio.sleep(0)
            accepting.cancel()
            await asyncio.wait({accepting})
            if accepting.cancelled():
                sock, _ = listener.accept()
            else:
                sock = accepting.result()
            with sock:
                replica.send(b"x")
                sock.settimeout(5)
                assert sock.recv(1) == b"x"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(cancelled())
