"""Relay between a gateway's connection and a replica that cannot move to it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

_PIECE_BYTES = 1 << 18


class Streams(NamedTuple):
    """The two directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def relay(one: Streams, other: Streams) -> None:
    """Copy bytes both ways until one side ends, then end both."""
    pumps = [
        asyncio.ensure_future(_pump(one.reader, other.writer)),
        asyncio.ensure_future(_pump(other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for streams in (one, other):
            streams.writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await writer.drain()
