"""Files on their way to another machine, over a connection of their own.

A file is a frame {"digest", "bytes"} with the first piece of its content, and frames {} with the
others. It is answered {"digest"}, or {"digest", "error"} once all of a refused content was read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping

from serving.spawners.node import link
from serving.spawners.node.artefacts import ArtefactError, ArtefactStore
from serving.spawners.node.link import Link
from serving.system.daemon_threads import run_in_daemon_thread

PROGRESS_S = 30.0
"""Seconds in which the next piece of a file must be taken; the whole may take any time."""


async def send(opened: Link, paths: Mapping[str, str]) -> None:
    """Send files, given by digest.

    Raises:
        ArtefactError: one is refused, becomes shorter, or does not get on.
        ServingError, OSError: the connection has ended, or a file cannot be read.
    """
    for digest, path in paths.items():
        try:
            await _send(opened, digest, path)
        except TimeoutError:
            text = f"{path}: the machine took no more of it within {PROGRESS_S:g} s"
            raise ArtefactError(text) from None


async def _send(opened: Link, digest: str, path: str) -> None:
    with await run_in_daemon_thread(open, path, "rb") as file:
        left = os.fstat(file.fileno()).st_size
        head: dict[str, object] = {"digest": digest, "bytes": left}
        while True:
            piece = await run_in_daemon_thread(file.read, link.PIECE_BYTES)
            if left and not piece:
                raise ArtefactError(f"{path} became shorter while it was sent")
            opened.send(head, piece)
            async with asyncio.timeout(PROGRESS_S):
                await opened.drain()
            left -= len(piece)
            if left <= 0:
                break
            head = {}
    async with asyncio.timeout(PROGRESS_S):
        told, _ = await opened.receive()
    if "error" in told:
        raise ArtefactError(f"{path}: {told['error']}")


async def receive(opened: Link, store: ArtefactStore) -> None:
    """Keep the files that come, until the connection ends."""
    try:
        while True:
            message, blob = await opened.receive()
            digest = str(message["digest"])
            pieces = _pieces(opened, blob, int(message["bytes"]))
            answer = {"digest": digest}
            try:
                with store.receive(digest) as take:
                    async for piece in pieces:
                        await run_in_daemon_thread(take, piece)
            except (ArtefactError, OSError) as error:
                if isinstance(error, ConnectionError):
                    raise
                answer["error"] = str(error)
                async for _ in pieces:  # what follows it is the next file
                    pass
            opened.send(answer)
    except (ConnectionError, KeyError, ValueError):
        pass  # the gateway is done, or gone
    finally:
        opened.abort()


async def _pieces(opened: Link, blob: bytes, left: int) -> AsyncIterator[bytes]:
    """Yield the pieces of a content, of which the first has come."""
    while True:
        yield blob
        left -= len(blob)
        if left <= 0:
            return
        _, blob = await opened.receive()
