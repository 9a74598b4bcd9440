"""Responses of the Open Inference Protocol v2 over REST, as JSON and binary tensors.

The JSON part is cached per output request and layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from serving import wire
from serving.api.triton.classification import classify
from serving.errors import InferenceFailed
from serving.tensors import json_tensors
from serving.values import Buffer, Signature, Tensor

LONG_BYTES = 64 * 1024
"""Size above which JSON outputs are written in pieces."""
_CACHED_TEMPLATES = 1024
_OUTPUTS = b'"outputs":'
"""Start of the outputs in the JSON part; unique, since strings escape their quotes."""


class OutputRequest(NamedTuple):
    """Requested contents of a response."""

    id: str | None
    outputs: tuple[tuple[str, bool, int], ...] | None
    """Name, binary flag and number of classes (0 for the plain tensor) per output; None for all."""
    binary: bool
    """Whether outputs are binary if none are named."""


class ResponseTemplate:
    """Response without its binary data, shared by responses of one layout."""

    __slots__ = ("header", "header_bytes", "meaning")

    def __init__(self, header: bytes, header_bytes: int | None) -> None:
        self.header = header
        self.header_bytes = header_bytes
        self.meaning: Any = None


class ResponseEncoder:
    """Response encoder for one model version."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._signature = signature
        self._forms: dict[wire.Layout, ResponseTemplate] = {}
        self._last_form = ResponseTemplate(b"", None)
        self._last_wanted: OutputRequest | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    def encode_response(
        self, frame: memoryview, wanted: OutputRequest
    ) -> tuple[ResponseTemplate, Buffer]:
        """Return the template and the binary data of a response."""
        if wanted.binary and wanted.outputs is None:
            prefix = self._last_prefix
            if (
                wanted is self._last_wanted
                and len(frame) == self._last_frame_bytes
                and frame[: len(prefix)].tobytes() == prefix
            ):
                return self._last_form, frame[len(prefix) :]
            return self._all_binary(frame, wanted)
        chosen = self._choose_outputs(frame, wanted)
        header = self._header(chosen, wanted.id)
        binary_data = [tensor.data for tensor, binary in chosen if binary]
        return ResponseTemplate(header, len(header) if binary_data else None), b"".join(binary_data)

    def is_long(self, frame: memoryview, wanted: OutputRequest) -> bool:
        """Return whether the response is long and needs `encode_in_pieces`."""
        if len(frame) <= LONG_BYTES:
            return False
        if wanted.outputs is None:
            return not wanted.binary
        return not all(binary for _, binary, _ in wanted.outputs)

    def encode_in_pieces(
        self, frame: memoryview, wanted: OutputRequest
    ) -> tuple[Iterator[bytes], bytes | None]:
        """Return the JSON part in small pieces, and the binary data."""
        chosen = self._choose_outputs(frame, wanted)
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
                for text in json_tensors.tensor_to_json_pieces(tensor):
                    yield text.encode()
        yield empty[-2:]

    def _choose_outputs(
        self, frame: memoryview, wanted: OutputRequest
    ) -> list[tuple[Tensor, bool]]:
        tensors = wire.decode_frame(frame)
        if wanted.outputs is None:
            return [(tensor, wanted.binary) for tensor in tensors]
        chosen = select_outputs(tensors, [name for name, _, _ in wanted.outputs])
        return [
            (classify(tensor, classes, self._signature) if classes else tensor, binary)
            for tensor, (_, binary, classes) in zip(chosen, wanted.outputs, strict=True)
        ]

    def _all_binary(
        self, frame: memoryview, wanted: OutputRequest
    ) -> tuple[ResponseTemplate, Buffer]:
        layout, data = wire.split_frame(frame)
        form = self._forms.get(layout)
        if form is None:
            header = self._header([(t, True) for t in wire.decode_frame(frame)], None)
            form = ResponseTemplate(header, len(header))
            if len(self._forms) >= _CACHED_TEMPLATES:
                self._forms.clear()
            self._forms[layout] = form
        if wanted.id is not None:
            before, outputs, after = form.header.partition(_OUTPUTS)
            header = b'%b"id":%b,%b%b' % (before, json.dumps(wanted.id).encode(), outputs, after)
            return ResponseTemplate(header, len(header)), data
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


def select_outputs(tensors: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
    """Return the requested outputs in order, or raise InferenceFailed if one is missing."""
    by_name = {tensor.name: tensor for tensor in tensors}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InferenceFailed(f"the model returned no output {', '.join(missing)}")
    return [by_name[name] for name in names]


def _binary_output(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "parameters": {"binary_data_size": len(tensor.data)},
    }
