"""Inference requests of the Open Inference Protocol v2 over REST, as JSON and binary tensors.

Errors are `InvalidRequest`, with Triton's messages where clients match on them. Headers of binary
requests are cached; only the skeleton of large JSON is read if the replica can read the numbers.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving import wire
from serving.api.open_inference.infer_request import TENSORS, DecodedRequest, tensor_request
from serving.api.open_inference.parameters import (
    binary_data_size,
    flag,
    limits_of,
    parameters_of,
    wrong_size,
)
from serving.api.open_inference.response_encoder import OutputRequest
from serving.api.open_inference.skeleton import LARGE_JSON_BYTES, check_empty, skeleton
from serving.api.parsing import bounded_json
from serving.api.parsing import tensors as tensors_of
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.triton import classification, unsupported
from serving.error_text import nearest, short_repr
from serving.errors import InvalidRequest
from serving.tensors import json_tensors
from serving.tensors.shapes import item_axis
from serving.values import ITEM_BYTES, Signature, Tensor, TensorSpec

_ID = re.compile(rb'"id"\s*:\s*"([^"\\\x00-\x1f]+)"')
"""Member `id` of any object, with a value without escapes."""

_CACHED_HEADERS = 1024
_CACHED_HEADER_BYTES = 4096


class _Layout(NamedTuple):
    """Parsed JSON header of a binary request."""

    descriptor: bytes
    data_bytes: int
    items: int
    wanted: OutputRequest
    timeout_s: float | None
    priority: int


class RequestDecoder:
    """Request decoder for one model version."""

    def __init__(
        self, name: str, signature: Signature, max_json_bytes: int = bounded_json.MAX_JSON_BYTES
    ) -> None:
        self._name = name
        self._signature = signature
        self._max_json_bytes = max_json_bytes
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._layouts: dict[bytes, _Layout] = {}
        self._named: dict[tuple[bytes, bytes], _Layout] = {}
        """Layouts by the bytes before and after the request's id."""
        self._last_header = b""
        self._last_layout: _Layout | None = None

    def query(self, body: bytes, header_bytes: int | None) -> DecodedRequest:
        """Parse a request; `header_bytes` is Inference-Header-Content-Length or None.

        Raises:
            InvalidRequest: the request is malformed or does not fit the model.
        """
        layout = self._last_layout
        if (
            layout is None
            or header_bytes != len(self._last_header)
            or not body.startswith(self._last_header)
        ):
            if header_bytes is None:
                return self._json_query(body)
            if header_bytes == 0:
                return self._raw_query(body)
            if not 0 < header_bytes <= len(body):
                raise InvalidRequest(
                    f"Inference-Header-Content-Length is {header_bytes}, expected 0 to {len(body)}, the Content-Length"
                )
            header = body[:header_bytes]
            layout = None
            if header_bytes <= _CACHED_HEADER_BYTES:
                layout = self._layouts.get(header) or self._named_layout(header)
            if layout is None:
                layout = self._layout(header)
                if layout is None:
                    return self._tensor_query(header, body[header_bytes:])
                self._keep(header, layout)
        descriptor, data_bytes, items, wanted, timeout_s, priority = layout
        data = body[header_bytes:]
        given = len(data)
        if given != data_bytes:
            raise wrong_size(given, data_bytes, self._signature.inputs[0].name, self._name)
        frame_bytes = len(descriptor) + given
        return DecodedRequest(
            (descriptor, data), frame_bytes, TENSORS, items, wanted, timeout_s, priority
        )

    def _keep(self, header: bytes, layout: _Layout) -> None:
        if len(header) > _CACHED_HEADER_BYTES:
            return
        if len(self._layouts) >= _CACHED_HEADERS and header not in self._layouts:
            self._layouts.clear()
        self._layouts[header] = layout
        self._last_layout, self._last_header = layout, header

    def _named_layout(self, header: bytes) -> _Layout | None:
        """Return the layout of a header with an id, cached for headers that differ only in the id.

        Replacing a string without escapes keeps the JSON's structure; parsing with another id shows
        that this is the request's own id.
        """
        found = _ID.search(header)
        if found is None:
            return None
        try:
            id_ = found[1].decode()
        except UnicodeDecodeError:
            return None  # the parser reports it
        around = header[: found.start(1)], header[found.end(1) :]
        layout = self._named.get(around)
        if layout is None:
            layout = self._layout(header)
            other = f"not {id_}"
            renamed = other.encode().join(around)
            if layout is None or self._parse_json(renamed).get("id") != other:
                return layout
            if len(self._named) >= _CACHED_HEADERS:
                self._named.clear()
            self._named[around] = layout
        return layout._replace(wanted=layout.wanted._replace(id=id_))

    def _layout(self, header: bytes) -> _Layout | None:
        """Return a header's layout, or None unless all inputs are binary and none is BYTES."""
        request = self._parse_json(header)
        inputs = self._inputs(request)
        if any("data" in item for item in inputs):
            return None
        declared: list[Tensor] = []
        described: list[tuple[str, str, tuple[int, ...], int]] = []
        for item in inputs:
            name, datatype, shape = json_tensors.parse_input_header(item)
            size = binary_data_size(item, name)
            if not ITEM_BYTES[datatype]:
                return None  # elements of BYTES are checked one by one
            expected = math.prod(shape) * ITEM_BYTES[datatype]
            if size != expected:
                raise InvalidRequest(
                    f"input {name!r}: binary_data_size is {size}, but shape {list(shape)} of {datatype} "
                    f"takes {expected} bytes"
                )
            declared.append(Tensor(name, datatype, shape, b""))
            described.append((name, datatype, shape, size))
        items = tensors_of.checked_items(self._name, self._signature, declared)
        return _Layout(
            wire.describe(tuple(described)),
            sum([size for _, _, _, size in described]),
            items,
            self._parse_output_request(request),
            *limits_of(request),
        )

    def _tensor_query(self, text: bytes, binary: bytes | None) -> DecodedRequest:
        request = self._parse_json(text)
        inputs = self._inputs(request)
        declared = [Tensor(*json_tensors.parse_input_header(item), b"") for item in inputs]
        items = tensors_of.checked_items(self._name, self._signature, declared)
        tensors = []
        position = 0
        budget: ParseBudget | None = None
        for item, (name, datatype, shape, _) in zip(inputs, declared, strict=True):
            if "data" in item:
                tensors.append(json_tensors.tensor_of(name, datatype, shape, item["data"]))
                continue
            size = binary_data_size(item, name)
            if size and binary is None:  # for 0 bytes KServe's client sends no header either
                raise InvalidRequest(
                    f"input {name!r}: binary_data_size is {size}, but the request has no binary part (that needs "
                    f"the header Inference-Header-Content-Length)"
                )
            data = (binary or b"")[position : position + size]
            if len(data) < size:
                raise wrong_size(len(data), size, name, self._name)
            budget = budget or ParseBudget(what="elements of BYTES")
            tensors_of.check_bytes(name, datatype, shape, data, budget)
            tensors.append(Tensor(name, datatype, shape, data))
            position += size
        if binary is not None and position != len(binary):
            raise wrong_size(len(binary), position, "", self._name)
        return tensor_request(
            tensors, items, self._parse_output_request(request), *limits_of(request)
        )

    def _raw_query(self, body: bytes) -> DecodedRequest:
        if len(self._signature.inputs) != 1:
            raise InvalidRequest(
                f"a raw request (Inference-Header-Content-Length: 0) needs a model with exactly one input; "
                f"{self._name!r} has {len(self._signature.inputs)}"
            )
        spec = self._signature.inputs[0]
        data = struct.pack("<I", len(body)) + body if spec.datatype == "BYTES" else body
        tensor = Tensor(spec.name, spec.datatype, self._raw_shape(spec, len(body)), data)
        items = tensors_of.checked_items(self._name, self._signature, [tensor])
        return tensor_request([tensor], items, OutputRequest(None, None, binary=True))

    def _raw_shape(self, spec: TensorSpec, size: int) -> tuple[int, ...]:
        """Return the shape of one item, or of the whole input of an unbatched model."""
        axis = item_axis(spec, self._signature)
        shape = [1 if place == axis else length for place, length in enumerate(spec.shape)]
        free = [place for place, length in enumerate(shape) if length < 0]
        fixed = math.prod(length for length in shape if length >= 0)
        if spec.datatype == "BYTES":
            if fixed != 1:
                raise InvalidRequest(
                    f"a raw request is one element of BYTES; input {spec.name!r} has shape {list(spec.shape)}"
                )
            return tuple([abs(length) for length in shape])
        if len(free) > 1:
            raise InvalidRequest(
                "a raw request allows at most one free dimension besides the item axis; "
                f"input {spec.name!r} has shape {list(spec.shape)}"
            )
        fixed_bytes = fixed * ITEM_BYTES[spec.datatype]
        if free:
            shape[free[0]], rest = divmod(size, fixed_bytes) if fixed_bytes else (0, size)
            if rest:
                raise InvalidRequest(
                    f"unexpected size for input {spec.name!r}: {size} bytes are not a multiple "
                    f"of {fixed_bytes}"
                )
        elif size != fixed_bytes:
            raise wrong_size(size, fixed_bytes, spec.name, self._name)
        return tuple(shape)

    def _json_query(self, body: bytes) -> DecodedRequest:
        if len(body) > LARGE_JSON_BYTES and self._signature.reads_json:
            large = self._large_json_query(body)
            if large is not None:
                return large
        return self._tensor_query(body, None)

    def _large_json_query(self, body: bytes) -> DecodedRequest | None:
        """Return a request that carries its JSON unparsed, or None if its skeleton is large."""
        found = skeleton(body)
        if found is None:
            return None
        request = self._parse_json(found)
        check_empty(body)
        declared = []
        for item in self._inputs(request):
            name, datatype, shape = json_tensors.parse_input_header(item)
            if "data" not in item:
                raise InvalidRequest(
                    f"input {name!r} has no data, and the request has no binary part"
                )
            declared.append(Tensor(name, datatype, shape, b""))
        items = tensors_of.checked_items(self._name, self._signature, declared)
        wanted = self._parse_output_request(request)
        return DecodedRequest(
            (body,), len(body), wire.Encoding.OIP_JSON, items, wanted, *limits_of(request)
        )

    def _parse_json(self, text: bytes) -> dict[str, Any]:
        bounded_json.check(text, self._max_json_bytes)
        try:
            request = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"failed to parse the request JSON: {error} (binary tensors need the header "
                f"Inference-Header-Content-Length)"
            ) from error
        if not isinstance(request, dict):
            raise InvalidRequest("the request is not a JSON object")
        return request

    def _inputs(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        inputs = request.get("inputs")
        if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
            raise InvalidRequest(
                "the request has no array `inputs` of objects with name, shape, datatype and data"
            )
        tensors_of.check_count(self._name, self._signature, len(inputs))
        for item in inputs:
            if item.get("data", 0) is None:  # some clients send null for absent
                del item["data"]
            parameters = parameters_of(item, "an input")
            unsupported.check_tensor("input", item.get("name"), parameters)
            given = ("data" in item) + ("binary_data_size" in parameters)
            if given != 1:
                raise InvalidRequest(
                    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters'; "
                    f"input {short_repr(item.get('name'))} sets {'both' if given else 'none'}"
                )
        return inputs

    def _parse_output_request(self, request: Mapping[str, Any]) -> OutputRequest:
        id_ = request.get("id")
        if id_ is not None and not isinstance(id_, str):
            raise InvalidRequest(f"id is {short_repr(id_)}, expected a string")
        parameters = parameters_of(request, "the request")
        binary = flag(parameters, "binary_data_output", default=False)
        listed = request.get("outputs")
        if not listed:
            return OutputRequest(id_, None, binary)
        if not isinstance(listed, list):
            raise InvalidRequest("outputs is not an array")
        outputs: dict[str, tuple[bool, int]] = {}
        for item in listed:
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or name not in self._outputs:
                raise InvalidRequest(
                    f"requested output {short_repr(name)}: model {self._name!r} has {', '.join(sorted(self._outputs))}"
                    + (nearest(name, self._outputs) if isinstance(name, str) else "")
                )
            if name in outputs:
                raise InvalidRequest(f"an output is requested twice: {name}")
            own = parameters_of(item, f"output {name!r}")
            unsupported.check_tensor("output", name, own)
            classes = classification.requested_classes(self._outputs[name], own)
            outputs[name] = flag(own, "binary_data", default=binary), classes
        return OutputRequest(id_, tuple((name, *asked) for name, asked in outputs.items()), binary)
