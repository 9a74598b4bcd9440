"""Encoding of actions as wire messages."""

from __future__ import annotations

import math
import pathlib

from serving import wire
from serving.deployment.dispatch.inflight import InflightRequest
from serving.deployment.dispatch.model_load import LoadSpec
from serving.errors import SplitTooLarge
from serving.scheduling.interface import Action
from serving.values import Buffer
from serving.wire.parts import SplitRequest
from serving.wire.staged_path import staged_path

MAX_RESENT_BYTES = 2**28
"""Maximum total bytes for a request sent whole with each part: four large bodies."""


def infer_message(
    action: Action,
    jobs: dict[int, InflightRequest],
    model: int,
    *,
    has_rows: bool,
    offset_s: float = 0.0,
) -> list[Buffer]:
    """Return an INFER message as a list of buffers.

    Args:
        jobs: in-flight requests by id.
        model: the model's wire id.
        has_rows: whether items are rows of all inputs; otherwise split requests are sent whole,
            and the replica cuts them.
        offset_s: the replica's clock minus the gateway's.

    Raises:
        WireError: the batch is too large for a message.
        SplitTooLarge: a request, sent whole with each part, would exceed `MAX_RESENT_BYTES`.
    """
    frames: list[tuple[int, int, int, int]] = []
    message: list[Buffer] = [b""]
    for id_, start, stop in action.parts:
        job = jobs[id_]
        request = job.request
        if stop - start != job.items:
            split = job.split
            if split is None:
                split = SplitRequest(request.frame, request.encoding, job.items, has_rows=has_rows)
                job.split = split
            if split.is_cut:
                buffers = split.cut(start, stop)
                frames.append((sum(map(len, buffers)), request.encoding, 0, 0))
                message += buffers
                continue
            split.whole_bytes += request.frame_bytes
            if split.whole_bytes > MAX_RESENT_BYTES:
                raise SplitTooLarge(MAX_RESENT_BYTES)
            frames.append((request.frame_bytes, request.encoding, start, stop))
        else:
            frames.append((request.frame_bytes, request.encoding, 0, 0))
        message += request.frame
    message[0] = wire.infer_head(action.id, model, *window_ns(action, offset_s), frames)
    return message


def load_message(action: Action, wanted: LoadSpec, model: int, offset_s: float = 0.0) -> bytes:
    """Return a LOAD message for the model with the wire id `model`."""
    spec = wanted.spec
    load = wire.LoadMessage(
        action.id,
        *window_ns(action, offset_s),
        model=model,
        name=spec.name,
        version=spec.version,
        kind=spec.kind,
        path=_wire_path(wanted.weights or spec.path, wanted.root),
        threads=wanted.threads,
        samples=_wire_path(spec.sample, wanted.root),
        max_items=wanted.max_items,
        warmup_s=wanted.warmup_s,
        device=wanted.device,
        pages=wanted.pages,
        budget=wanted.budget,
        digest=wanted.digest,
        optimises=wanted.optimises,
        inputs=wanted.inputs,
        max_response_bytes=wanted.max_response_bytes,
    )
    return wire.encode_load(load)


def unload_message(action: Action, model: int, offset_s: float = 0.0) -> bytes:
    """Return an UNLOAD message for the model with the wire id `model`."""
    earliest_ns, latest_ns = window_ns(action, offset_s)
    return wire.encode_unload(action.id, model=model, earliest_ns=earliest_ns, latest_ns=latest_ns)


def window_ns(action: Action, offset_s: float = 0.0) -> tuple[int, int]:
    """Return an action's time window in ns of the replica's CLOCK_MONOTONIC; 0 means no limit."""
    earliest_ns = int((action.earliest_s + offset_s) * 1e9) if action.earliest_s else 0
    latest_ns = 0 if action.latest_s == math.inf else int((action.latest_s + offset_s) * 1e9)
    return earliest_ns, latest_ns


def _wire_path(path: pathlib.Path | None, root: pathlib.Path | None) -> str | None:
    return None if path is None else str(staged_path(path, root))
