"""Requests that were seen before but for their data: read once, then looked up.

A client repeats all of a request but its tensors' data. A request in raw contents is remembered by
its length and by the bytes around the data; the next one that equals it there is not parsed again.
That is sound by a rule of protobuf: a whole message followed by further fields means the two merged,
and what follows here are the raw contents alone.

In: the bytes of a ModelInferRequest; out: the query that it means, with its own data. Pure. BYTES
tensors are not remembered, their elements are checked one by one; nor are requests with an id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from serving.protocol import varints
from serving.protocol.grpc_oip import messages
from serving.protocol.grpc_oip.codec import Codec, Query
from serving.values import ITEM_BYTES, Buffer, Signature

RAW_INPUT = b"\x3a"
"""Field 7 of a request, `raw_input_contents`, by its tag."""
MAX_REMEMBERED = 256
MAX_START_BYTES = 4096
"""Requests with more bytes than that before the data are not remembered."""


class Known(NamedTuple):
    """A request without its data."""

    name: str
    version: str | None
    """The model, as the request names it."""
    signature: Signature
    """Against which it was checked; for another one it must be read again."""
    codec: Codec
    start: bytes
    """All before the data of the first input."""
    cuts: tuple[tuple[int, int, bytes], ...]
    """Per input: where its data begins and ends, and the bytes between it and the next one's."""
    query: Query
    """Without data: its frame is the descriptor alone."""


class Repeats:
    """The requests that are remembered, one for each length."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}

    def find(self, data: memoryview) -> Known | None:
        """The request that this one repeats; None: it must be read."""
        known = self._known.get(len(data))
        if known is None or data[: len(known.start)].tobytes() != known.start:
            return None
        for _, stop, between in known.cuts:
            if between and data[stop : stop + len(between)] != between:
                return None
        return known

    def add(
        self, data: memoryview, request: Any, signature: Signature, codec: Codec, query: Query
    ) -> None:
        """Remember a request that was read, if it is one that can be."""
        raw = list(request.raw_input_contents)
        if not raw or request.id or not all(ITEM_BYTES[given.datatype] for given in request.inputs):
            return
        heads = [RAW_INPUT + varints.one(len(content)) for content in raw]
        position = len(data) - sum(map(len, heads)) - sum(map(len, raw))
        start = data[:position].tobytes()
        if position > MAX_START_BYTES or not _is_whole_without_data(start):
            return
        cuts = []
        for index, (head, content) in enumerate(zip(heads, raw, strict=True)):
            if data[position : position + len(head)] != head:
                return  # the raw contents do not stand at the end, or not in their shortest form
            position += len(head)
            stop = position + len(content)
            cuts.append((position, stop, heads[index + 1] if index + 1 < len(heads) else b""))
            position = stop
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[len(data)] = Known(
            request.model_name,
            request.model_version or None,
            signature,
            codec,
            start + heads[0],
            tuple(cuts),
            query._replace(frame=query.frame[:1]),
        )


def query_of(known: Known, data: memoryview) -> Query:
    """What a request that repeats a known one asks for."""
    frame: list[Buffer] = [known.query.frame[0]]
    frame += [data[start:stop] for start, stop, _ in known.cuts]
    return known.query._replace(frame=tuple(frame))


def _is_whole_without_data(start: bytes) -> bool:
    try:
        request = messages.parsed(messages.ModelInferRequest, start)
    except messages.NotAMessage:
        return False
    return not request.raw_input_contents
