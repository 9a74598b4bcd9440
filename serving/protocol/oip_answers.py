"""Answers of the Open Inference Protocol v2 over REST: JSON and binary tensors.

In: a tensors frame from a replica and the `Wanted` of its request. Out: the answer's JSON part and its
binary data. Clients repeat their wishes, and a model the layout of its outputs: the JSON part of such
answers is written once.

Pure: no sockets, no engine. Specification: the protocol's REST and binary-data extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from serving import json_tensors
from serving.errors import PredictionFailed
from serving.protocol.classification import classified
from serving.replica import wire
from serving.values import Buffer, Signature, Tensor

LONG_BYTES = 64 * 1024
"""Outputs that take longer to be written in JSON than others should wait."""
_KEPT_FORMS = 1024
_OUTPUTS = b'"outputs":'
"""Where these are in an answer's JSON part; no text within it holds a quote as it is."""


class Wanted(NamedTuple):
    """What the answer shall look like."""

    id: str | None
    outputs: tuple[tuple[str, bool, int], ...] | None
    """Requested outputs in order, each with whether it is wanted in binary, and how many classes of it instead of
    the tensor (0: the tensor); None: all."""
    binary: bool
    """Form of all outputs when none is requested by name."""


class Form:
    """All of an answer but its binary data; answers of equal layout and wishes share one."""

    __slots__ = ("header", "header_bytes", "meaning")

    def __init__(self, header: bytes, header_bytes: int | None) -> None:
        self.header = header
        """The JSON part of the body."""
        self.header_bytes = header_bytes
        """Its length where binary data follows; None: the body is all JSON."""
        self.meaning: Any = None
        """Room for the listener to keep what it made of the form."""


class Answers:
    """Writes the answers of one model version."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._signature = signature
        self._forms: dict[wire.Layout, Form] = {}
        """Of answers without an id all of which is binary."""
        self._last_form = Form(b"", None)
        self._last_wanted: Wanted | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    def answer(self, frame: memoryview, wanted: Wanted) -> tuple[Form, Buffer]:
        """The form of an answer, and its binary data.

        Args:
            frame: a tensors frame of the replica.
            wanted: as the request asked.
        """
        if wanted.binary and wanted.outputs is None:
            prefix = self._last_prefix
            if (
                wanted is self._last_wanted
                and len(frame) == self._last_frame_bytes
                and frame[: len(prefix)].tobytes() == prefix
            ):
                return self._last_form, frame[len(prefix) :]
            return self._all_binary(frame, wanted)
        chosen = self._chosen(frame, wanted)
        header = self._header(chosen, wanted.id)
        binary_data = [tensor.data for tensor, binary in chosen if binary]
        return Form(header, len(header) if binary_data else None), b"".join(binary_data)

    def is_long(self, frame: memoryview, wanted: Wanted) -> bool:
        """Whether an answer is to be written in pieces, for it may be long in JSON."""
        if len(frame) <= LONG_BYTES:
            return False
        if wanted.outputs is None:
            return not wanted.binary
        return not all(binary for _, binary, _ in wanted.outputs)

    def written(self, frame: memoryview, wanted: Wanted) -> tuple[Iterator[bytes], bytes | None]:
        """As `answer`: the JSON part in pieces, each soon made, and the binary data; None: there are none."""
        chosen = self._chosen(frame, wanted)
        data = [tensor.data for tensor, binary in chosen if binary]
        return self._pieces(chosen, wanted.id), b"".join(data) if data else None

    def _pieces(self, chosen: list[tuple[Tensor, bool]], id_: str | None) -> Iterator[bytes]:
        empty = self._header([], id_)
        yield empty[:-2]
        for place, (tensor, binary) in enumerate(chosen):
            if place:
                yield b","
            if binary:
                yield json.dumps(_binary_output(tensor), separators=(",", ":")).encode()
            else:
                for text in json_tensors.written(tensor):
                    yield text.encode()
        yield empty[-2:]

    def _chosen(self, frame: memoryview, wanted: Wanted) -> list[tuple[Tensor, bool]]:
        """What is answered, each with whether it is in binary."""
        tensors = wire.decode_frame(frame)
        if wanted.outputs is None:
            return [(tensor, wanted.binary) for tensor in tensors]
        by_name = {tensor.name: tensor for tensor in tensors}
        missing = [name for name, _, _ in wanted.outputs if name not in by_name]
        if missing:
            raise PredictionFailed(f"the model returned no output {', '.join(missing)}")
        return [
            (
                classified(by_name[name], classes, self._signature) if classes else by_name[name],
                binary,
            )
            for name, binary, classes in wanted.outputs
        ]

    def _all_binary(self, frame: memoryview, wanted: Wanted) -> tuple[Form, Buffer]:
        layout, data = wire.split_frame(frame)
        form = self._forms.get(layout)
        if form is None:
            header = self._header([(t, True) for t in wire.decode_frame(frame)], None)
            form = Form(header, len(header))
            if len(self._forms) >= _KEPT_FORMS:
                self._forms.clear()
            self._forms[layout] = form
        if wanted.id is not None:
            before, outputs, after = form.header.partition(_OUTPUTS)
            header = b'%b"id":%b,%b%b' % (before, json.dumps(wanted.id).encode(), outputs, after)
            return Form(header, len(header)), data
        self._last_form, self._last_wanted = form, wanted
        self._last_prefix = frame[: layout.prefix_bytes].tobytes()
        self._last_frame_bytes = len(frame)
        return form, data

    def _header(self, chosen: list[tuple[Tensor, bool]], id_: str | None) -> bytes:
        outputs = [
            _binary_output(tensor) if binary else json_tensors.tensor_to_json(tensor)
            for tensor, binary in chosen
        ]
        response: dict[str, Any] = {"model_name": self._name, "model_version": self._version}
        if id_ is not None:
            response["id"] = id_
        response["outputs"] = outputs
        return json.dumps(response, separators=(",", ":")).encode()


def _binary_output(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "parameters": {"binary_data_size": len(tensor.data)},
    }
