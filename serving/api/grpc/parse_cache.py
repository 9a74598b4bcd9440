"""Parse cache for requests that differ from an earlier one only in tensor data.

A raw-contents request is found by its length and the bytes around its data. Requests with an id, or
with BYTES tensors, whose elements need checks, are not cached.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from serving.api.grpc import messages
from serving.api.grpc.codec import GrpcCodec, GrpcInferRequest
from serving.api.parsing import varints
from serving.errors import InvalidRequest
from serving.values import ITEM_BYTES, Buffer, Signature

RAW_INPUT = b"\x3a"
"""Tag of field 7 of a request, `raw_input_contents`."""
MAX_REMEMBERED = 256
MAX_START_BYTES = 4096


class CachedRequest(NamedTuple):
    """A request without its data."""

    name: str
    version: str | None
    signature: Signature
    """Signature at the time of parsing; any other requires a new parse."""
    codec: GrpcCodec
    start: bytes
    cuts: tuple[tuple[int, int, bytes], ...]
    """Start and end of each input's data, and the bytes before the next input's data."""
    query: GrpcInferRequest


class ParseCache:
    """Cached requests, one per length."""

    def __init__(self) -> None:
        self._known: dict[int, CachedRequest] = {}

    def find(self, data: memoryview) -> CachedRequest | None:
        """Return the cached request that `data` repeats, if any."""
        known = self._known.get(len(data))
        if known is None or data[: len(known.start)].tobytes() != known.start:
            return None
        for _, stop, between in known.cuts:
            if between and data[stop : stop + len(between)] != between:
                return None
        return known

    def add(
        self,
        data: memoryview,
        request: Any,
        signature: Signature,
        codec: GrpcCodec,
        query: GrpcInferRequest,
    ) -> None:
        """Cache a parsed request if possible."""
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
                return  # raw contents are not last, or not in shortest form
            position += len(head)
            stop = position + len(content)
            cuts.append((position, stop, heads[index + 1] if index + 1 < len(heads) else b""))
            position = stop
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[len(data)] = CachedRequest(
            request.model_name,
            request.model_version or None,
            signature,
            codec,
            start + heads[0],
            tuple(cuts),
            query._replace(frame=query.frame[:1]),
        )


def infer_request_of(known: CachedRequest, data: memoryview) -> GrpcInferRequest:
    """Build the query of a request that repeats `known`."""
    frame: list[Buffer] = [known.query.frame[0]]
    frame += [data[start:stop] for start, stop, _ in known.cuts]
    return known.query._replace(frame=tuple(frame))


def _is_whole_without_data(start: bytes) -> bool:
    try:
        request = messages.parse(messages.ModelInferRequest, start)
    except InvalidRequest:
        return False
    return not request.raw_input_contents
