"""Main loop of a replica: one thread reads actions from a blocking socket, runs them and responds.

- An action that is late for its window is rejected (TOO_LATE); an early one waits. The only
  clock is CLOCK_MONOTONIC, shared with the gateway.
- A LOAD includes the warm-up, so that no INFER pays for a first call.
- The caller disables automatic garbage collection; the loop collects after a load and while idle.
  Loaded models live long and are frozen; if models come and go, only the first model is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import os
import pathlib
import socket
import time
from collections.abc import Sequence

from serving import models, wire
from serving.errors import ModelLoadFailed, ModelMissing
from serving.models import cuda
from serving.replica import moving, warmup
from serving.replica.batching_check import check_batching
from serving.replica.collation import Failure
from serving.replica.execution import Execution, Outcome, error_text, failure_outcome
from serving.replica.message_socket import MessageSocket
from serving.replica.padding import Padding
from serving.replica.samples import Samples, samples_of
from serving.system import malloc
from serving.tensors.item_axes import detect_item_axes
from serving.values import Buffer, Signature
from serving.wire import ActionStatus, MessageType, exit_codes
from serving.wire.staged_path import staged_path

log = logging.getLogger(__name__)

EXIT_CLOSED = 0
"""Exit code after the gateway has closed the socket."""
EXIT_GARBAGE = 65
"""Exit code if the gateway broke the protocol (EX_DATAERR)."""

_ACTIONS_PER_COLLECTION = 256
_ACTIONS_PER_LOOK = 16
"""Number of actions between polls for an idle moment once a collection is due."""
_ACTIONS_WITHOUT_COLLECTION = 16_384
"""Number of actions after which garbage is collected even without an idle moment."""
_PAUSE_MS = 2
_NO_TIMES = wire.ReplicaTimes(0, 0, 0, 0)


def serve(
    sock: socket.socket,
    *,
    max_message_bytes: int = wire.DEFAULT_MAX_MESSAGE_BYTES,
    root: pathlib.Path | None = None,
) -> int:
    """Run as a replica on a connected, blocking socket; return the exit code.

    A message above `max_message_bytes` ends the replica. The gateway's absolute paths are looked up
    below `root`.
    """
    hello = wire.encode_hello(pid=os.getpid(), monotonic_ns=time.monotonic_ns())
    try:
        with contextlib.suppress(ConnectionError):  # the gateway may end inside a message
            sock.sendall(hello)
            return MainLoop(moving.moved(sock, max_message_bytes), root=root).run()
    except wire.WireError as error:
        log.error("invalid bytes from the gateway", extra={"error": str(error)})
        return EXIT_GARBAGE
    except OSError as error:  # the way to another machine is cut, or cannot be secured
        log.error("the connection to the gateway has failed", extra={"error": str(error)})
        return exit_codes.NO_GATEWAY
    return EXIT_CLOSED


def _right_lacking(path: pathlib.Path) -> str:
    name = path.name.partition(":")[0]
    if (
        not path.is_absolute()
        or os.access(path, os.R_OK)
        or os.access(path.with_name(name), os.R_OK)
    ):
        return ""
    return f"; user {os.geteuid()} of the container needs the right to read it"


class MainLoop:
    """Main loop of one replica."""

    def __init__(self, messages: MessageSocket, *, root: pathlib.Path | None = None) -> None:
        self._messages = messages
        self._root = root
        self._max_response_bytes: int | None = None
        """Size limit of a response, from the last LOAD."""
        self._models: dict[int, tuple[Execution, int]] = {}
        """Wire id -> model and its number of pages."""
        self._shares = False
        """Whether models come and go within a page budget."""
        self._actions = 0
        self._has_broken_gpu = False

    def run(self) -> int:
        """Serve until the socket is closed or the GPU unusable; return the exit code.

        Raises as `MessageSocket.receive` does.
        """
        while not self._has_broken_gpu:
            if self._actions >= _ACTIONS_PER_COLLECTION and not self._actions % _ACTIONS_PER_LOOK:
                self._collect_garbage()
            message = self._messages.receive()
            if message is None:
                return EXIT_CLOSED
            self._act(*message)
            self._actions += 1
        return exit_codes.GPU_BROKEN  # the gateway starts another replica

    def _collect_garbage(self) -> None:
        if self._actions >= _ACTIONS_WITHOUT_COLLECTION or self._messages.is_idle_for(_PAUSE_MS):
            gc.collect()
            self._actions = 0

    # Actions

    def _act(self, kind: MessageType, body: memoryview) -> None:
        if kind is MessageType.INFER:
            self._messages.send(self._infer(wire.parse_infer(body)))
        elif kind is MessageType.LOAD:
            load = wire.parse_load(body)
            self._messages.send([wire.encode_loaded(load.action_id, *self._load(load))])
        elif kind is MessageType.UNLOAD:
            unload = wire.parse_unload(body)
            self._messages.send([wire.encode_unloaded(unload.action_id, *self._unload(unload))])
        else:
            raise wire.WireError(f"message {kind.name} is not supported by a replica")

    def _infer(self, message: wire.InferMessage) -> list[Buffer]:
        known = self._models.get(message.model)
        if known is None:
            return self._make_rejection(
                message, ActionStatus.UNKNOWN_MODEL, _unknown(message.model)
            )
        started_ns = _start(message.earliest_ns, message.latest_ns)
        if started_ns is None:
            return self._make_rejection(message, ActionStatus.TOO_LATE, _TOO_LATE)
        outcomes, times = known[0].run(message, started_ns)
        self._has_broken_gpu = known[0].has_broken_gpu
        block = outcomes.block
        try:
            if block is None:
                return _result(
                    message.action_id, times, outcomes.each, most=self._max_response_bytes
                )
            sizes = [(block.frame_bytes, 0)] * block.requests
            head = wire.result_head(message.action_id, 0, times, sizes, self._max_response_bytes)
        except wire.WireError as error:  # one response or all together are too large
            text = f"too large for one message: {error}"
            return self._make_rejection(message, ActionStatus.TOO_LARGE, text, times)
        return [head, block.data]

    def _place(self, path: str | None) -> pathlib.Path | None:
        return None if path is None else staged_path(path, self._root)

    def _make_rejection(
        self,
        message: wire.InferMessage,
        status: ActionStatus,
        text: str,
        times: wire.ReplicaTimes = _NO_TIMES,
    ) -> list[Buffer]:
        outcomes = [failure_outcome(Failure(status, text))] * len(message.entries)
        return _result(message.action_id, times, outcomes, status)

    def _load(self, message: wire.LoadMessage) -> tuple[ActionStatus, dict[str, object]]:
        self._max_response_bytes = message.max_response_bytes
        settled = message.budget is None  # costs time while serving
        before_bytes = malloc.resident_bytes(settled=settled)
        began_ns = _start(message.earliest_ns, message.latest_ns)
        if began_ns is None:
            return ActionStatus.TOO_LATE, {"error": _TOO_LATE}
        lacking = self._room_lacking(message)
        if lacking:
            return ActionStatus.NO_ROOM, {"error": lacking}
        path = self._place(message.path)
        try:
            model = models.load(
                message.kind,
                path,
                threads=message.threads,
                device=message.device,
                # A container's cache does not outlive it.
                digest=message.digest if self._root is None else None,
                optimises=message.optimises,
            )
            execution, warmed = self._settle(model, message)
            if cuda.is_context_broken():  # by inputs of the trial, else the load has failed
                raise ModelLoadFailed(message.name, _broken_by(execution.signature, warmed))
        except (Exception, SystemExit) as error:  # a model may raise anything
            text = error.text if isinstance(error, ModelLoadFailed) else error_text(error)
            if self._root is not None and path is not None:
                text += _right_lacking(path)
            self._has_broken_gpu = cuda.is_context_broken()
            log.info("a model was not loaded", extra={"model": message.name, "error": text})
            is_missing = isinstance(error, ModelMissing)
            return ActionStatus.LOAD_FAILED, {"error": text, "is_missing": is_missing}
        self._models[message.model] = execution, message.pages
        gc.collect()
        if not self._shares:
            gc.freeze()
        self._shares = message.budget is not None
        return ActionStatus.OK, {
            "signature": execution.signature.as_json(),
            "load_s": (time.monotonic_ns() - began_ns) * 1e-9,
            "warmup": warmed.as_json(),
            "device": getattr(model, "device", None),
            "optimised": getattr(model, "optimised", None),
            "started_ns": began_ns,
            "memory_bytes": max(0, malloc.resident_bytes(settled=settled) - before_bytes),
        }

    def _settle(
        self, model: models.LoadedModel, message: wire.LoadMessage
    ) -> tuple[Execution, warmup.WarmUp]:
        told = message.inputs
        model.signature = detect_item_axes(
            model.signature, item_axis=told.item_axis, shared=told.shared, where=message.name
        )
        if told.unbatched is not None:
            model.signature = dataclasses.replace(
                model.signature, unbatched=told.unbatched, padding=told.padding
            )
        is_pure = getattr(model, "is_pure", False)
        samples: Samples | str = ""
        padding: Padding | None = None
        if is_pure or message.warmup_s:
            sampled = functools.partial(
                samples_of, model, self._place(message.samples), told.shapes, told.values
            )
            samples = sampled()
        if is_pure:
            model.signature, padding = check_batching(
                model, samples, told, within_s=message.warmup_s
            )
            if isinstance(samples, Samples) and not model.signature.is_batched:
                samples = sampled()  # the former item axis now has a size
        if not message.warmup_s:
            samples = ""
        execution = Execution(model, padding=padding)
        return execution, warmup.warm_up(
            execution, samples, max_items=message.max_items, within_s=message.warmup_s
        )

    def _room_lacking(self, message: wire.LoadMessage) -> str:
        if message.budget is None:
            return ""
        others = sum([pages for _, pages in self._models.values()])
        others -= self._models.get(message.model, (None, 0))[1]
        if others + message.pages <= message.budget:
            return ""
        return (
            f"{message.pages} pages of {message.budget} are needed and {others} are in "
            "use: unload models first"
        )

    def _unload(self, message: wire.UnloadMessage) -> tuple[ActionStatus, dict[str, object]]:
        if _start(message.earliest_ns, message.latest_ns) is None:
            return ActionStatus.TOO_LATE, {"error": _TOO_LATE}
        if self._models.pop(message.model, None) is None:
            return ActionStatus.UNKNOWN_MODEL, {"error": _unknown(message.model)}
        if not self._shares:  # else the next LOAD collects
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        return ActionStatus.OK, {}


def _broken_by(signature: Signature, warmed: warmup.WarmUp) -> str:
    reason = signature.unbatched or warmed.failure
    return (
        f"the inputs of its trial left the GPU unusable{f' ({reason})' if reason else ''}; give "
        "samples, or the values that the model takes, such as model.values=ids=0..99 (docs/inputs.md)"
    )


_TOO_LATE = "the action's window had closed before it could start"


def _unknown(model: int) -> str:
    return f"model number {model} is not loaded in this replica"


def _start(earliest_ns: int, latest_ns: int) -> int | None:
    now_ns = time.monotonic_ns()
    if latest_ns and now_ns > latest_ns:
        return None
    while earliest_ns > now_ns:
        time.sleep((earliest_ns - now_ns) * 1e-9)
        now_ns = time.monotonic_ns()
    return None if latest_ns and now_ns > latest_ns else now_ns


def _result(
    action_id: int,
    times: wire.ReplicaTimes,
    outcomes: Sequence[Outcome],
    status: int = 0,
    most: int | None = None,
) -> list[Buffer]:
    """Build a RESULT with status 0 if any request succeeded, otherwise with that of the first."""
    sizes = [(size, entry_status) for entry_status, size, _ in outcomes]
    if outcomes and all(entry_status for entry_status, _, _ in outcomes):
        status = outcomes[0][0]
    buffers: list[Buffer] = [wire.result_head(action_id, status, times, sizes, most)]
    for _, _, frame in outcomes:
        buffers += frame
    return buffers
