"""Open Inference Protocol v2 over REST: inference requests and answers, JSON and binary tensors.

In: a request body and the length of its JSON header; out: a `Query` whose frame goes to a replica
as it is. Back: a tensors frame from a replica and the `Wanted` of its request; out: the answer's
head fields and body. A binary request's JSON header is parsed once per distinct header: clients
repeat it with every request. Large JSON tensors are left to the replica, where it can read them; then
only their skeleton is read here.

Pure: no sockets, no engine. Specification: the protocol's REST and binary-data extension; error
texts follow Triton's where clients match on them. Invalid input raises `InvalidRequest`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving import json_tensors
from serving.errors import InvalidRequest, PredictionFailed, nearest
from serving.replica import wire
from serving.values import ITEM_BYTES, Buffer, Signature, Tensor, TensorSpec

LONGEST_TIMEOUT_US = 86_400_000_000
EXTENSIONS = ("binary_tensor_data",)

LARGE_JSON_BYTES = 64 * 1024
"""JSON bodies above this are decoded in the replica: decoding them here would hold up every other request."""

_NUMERIC_DATA = re.compile(rb'"data"\s*:\s*\[[-+0-9eE.,\s\[\]]*\](?=\s*[,}])')
"""A `data` member that holds numbers only; without it a body's skeleton is small."""

_CACHED_HEADERS = 1024
_CACHED_HEADER_BYTES = 4096


class Wanted(NamedTuple):
    """What the answer shall look like."""

    id: str | None
    outputs: tuple[tuple[str, bool], ...] | None
    """Requested outputs in order, each with whether it is wanted in binary; None: all."""
    binary: bool
    """Form of all outputs when none is requested by name."""


class Query(NamedTuple):
    """One inference request, ready to be sent to a replica."""

    frame: tuple[Buffer, ...]
    frame_bytes: int
    encoding: int
    items: int
    wanted: Wanted
    timeout_s: float | None
    """The request's own time limit (parameter `timeout`, microseconds), None: the server's default."""


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


class _Layout(NamedTuple):
    """What a binary request's JSON header says."""

    descriptor: bytes
    data_bytes: int
    items: int
    wanted: Wanted
    timeout_s: float | None


class Codec:
    """Requests and answers of one model version."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._signature = signature
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = {spec.name for spec in signature.outputs}
        self._layouts: dict[bytes, _Layout] = {}
        self._forms: dict[tuple[wire.Layout, Wanted], Form] = {}
        self._last_form = Form(b"", None)
        self._last_wanted: Wanted | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    # Requests

    def query(self, body: bytes, header_bytes: int | None) -> Query:
        """Read a request.

        Args:
            body: the whole body.
            header_bytes: value of Inference-Header-Content-Length, None when absent.

        Raises:
            InvalidRequest: with the input and what was expected of it.
        """
        if header_bytes is None:
            return self._json_query(body)
        if header_bytes == 0:
            return self._raw_query(body)
        if not 0 < header_bytes <= len(body):
            raise InvalidRequest(
                f"Inference-Header-Content-Length is {header_bytes}, expected 0 to {len(body)}, the Content-Length"
            )
        header = body[:header_bytes]
        layout = self._layouts.get(header)
        if layout is None:
            layout = self._layout(header)
            if layout is None:
                return self._mixed_query(header, body)
            if len(header) <= _CACHED_HEADER_BYTES:
                if len(self._layouts) >= _CACHED_HEADERS:
                    self._layouts.clear()
                self._layouts[header] = layout
        given = len(body) - header_bytes
        if given != layout.data_bytes:
            raise self._wrong_size(given, layout.data_bytes)
        frame = (layout.descriptor, body[header_bytes:])
        return Query(
            frame,
            len(layout.descriptor) + given,
            wire.Encoding.TENSORS,
            layout.items,
            layout.wanted,
            layout.timeout_s,
        )

    def _layout(self, header: bytes) -> _Layout | None:
        """The layout of a header all of whose inputs are binary; None when some are not."""
        request = _parsed(header)
        inputs = _inputs(request)
        if any("data" in item for item in inputs):
            return None
        declared: list[Tensor] = []
        sizes: list[int] = []
        for item in inputs:
            name, datatype, shape = json_tensors.declared(item)
            size = _binary_size(item, name)
            elements = math.prod(shape)
            if ITEM_BYTES[datatype]:
                if size != elements * ITEM_BYTES[datatype]:
                    raise InvalidRequest(
                        f"input {name!r}: binary_data_size is {size}, but shape {list(shape)} of {datatype} "
                        f"takes {elements * ITEM_BYTES[datatype]} bytes"
                    )
            else:
                return None  # the elements of BYTES are checked one by one
            declared.append(Tensor(name, datatype, shape, b""))
            sizes.append(size)
        items = self._items(declared)
        return _Layout(
            wire.describe(
                tuple(
                    (tensor.name, tensor.datatype, tensor.shape, size)
                    for tensor, size in zip(declared, sizes, strict=True)
                )
            ),
            sum(sizes),
            items,
            self._wanted(request),
            _timeout_s(request),
        )

    def _mixed_query(self, header: bytes, body: bytes) -> Query:
        """A request in which some inputs are JSON, or BYTES."""
        request = _parsed(header)
        tensors = []
        position = len(header)
        for item in _inputs(request):
            if "data" in item:
                tensors.append(json_tensors.tensor_from_json(item))
                continue
            name, datatype, shape = json_tensors.declared(item)
            size = _binary_size(item, name)
            data = body[position : position + size]
            if len(data) < size:
                raise InvalidRequest(
                    f"unexpected size for input {name!r}, expecting {size - len(data)} additional bytes "
                    f"for model {self._name!r}"
                )
            _check_bytes(name, datatype, shape, data)
            tensors.append(Tensor(name, datatype, shape, data))
            position += size
        if position != len(body):
            raise InvalidRequest(
                f"unexpected additional input data for model {self._name!r}: {len(body) - position} bytes"
            )
        return self._tensor_query(tensors, self._wanted(request), _timeout_s(request))

    def _raw_query(self, body: bytes) -> Query:
        if len(self._signature.inputs) != 1:
            raise InvalidRequest(
                f"a raw request (Inference-Header-Content-Length: 0) needs a model with exactly one input; "
                f"{self._name!r} has {len(self._signature.inputs)}"
            )
        spec = self._signature.inputs[0]
        if spec.datatype == "BYTES":
            tensor = Tensor(spec.name, "BYTES", (1,), struct.pack("<I", len(body)) + body)
        else:
            tensor = Tensor(spec.name, spec.datatype, self._raw_shape(spec, len(body)), body)
        return self._tensor_query([tensor], Wanted(None, None, binary=True), None)

    def _raw_shape(self, spec: TensorSpec, size: int) -> tuple[int, ...]:
        inner = spec.shape[1:]
        free = [axis for axis, length in enumerate(inner) if length < 0]
        fixed_bytes = (
            math.prod(length for length in inner if length >= 0) * ITEM_BYTES[spec.datatype]
        )
        if len(free) > 1:
            raise InvalidRequest(
                f"a raw request needs at most one free dimension beside the batch; input {spec.name!r} has "
                f"shape {list(spec.shape)}"
            )
        if free:
            length, rest = divmod(size, fixed_bytes) if fixed_bytes else (0, size)
            if rest:
                raise InvalidRequest(
                    f"unexpected size for input {spec.name!r}: {size} bytes are no multiple of {fixed_bytes}"
                )
            return (1, *(length if axis == free[0] else n for axis, n in enumerate(inner)))
        if size != fixed_bytes:
            raise self._wrong_size(size, fixed_bytes)
        return (1, *inner)

    def _json_query(self, body: bytes) -> Query:
        if len(body) > LARGE_JSON_BYTES and self._signature.reads_json:
            large = self._large_json_query(body)
            if large is not None:
                return large
        request = _parsed(body)
        tensors = [json_tensors.tensor_from_json(item) for item in _inputs(request)]
        return self._tensor_query(tensors, self._wanted(request), _timeout_s(request))

    def _large_json_query(self, body: bytes) -> Query | None:
        """A query that carries the JSON as it is; None when its skeleton is large all the same."""
        skeleton = _NUMERIC_DATA.sub(b'"data":[]', body)
        if len(skeleton) > LARGE_JSON_BYTES:
            return None
        request = _parsed(skeleton)
        declared = []
        for item in _inputs(request):
            name, datatype, shape = json_tensors.declared(item)
            if "data" not in item:
                raise InvalidRequest(f"input {name!r} has no data and the request no binary part")
            declared.append(Tensor(name, datatype, shape, b""))
        items = self._items(declared)
        wanted = self._wanted(request)
        return Query((body,), len(body), wire.Encoding.OIP_JSON, items, wanted, _timeout_s(request))

    def _tensor_query(
        self, tensors: list[Tensor], wanted: Wanted, timeout_s: float | None
    ) -> Query:
        items = self._items(tensors)
        descriptor = wire.encode_descriptor(tensors)
        frame = (descriptor, *(tensor.data for tensor in tensors))
        return Query(frame, sum(map(len, frame)), wire.Encoding.TENSORS, items, wanted, timeout_s)

    def _items(self, tensors: list[Tensor]) -> int:
        """Items of a request whose tensors fit the signature."""
        items: int | None = None
        names = {tensor.name for tensor in tensors}
        if len(names) < len(tensors) or names != self._inputs.keys():
            given = ", ".join(tensor.name for tensor in tensors) or "none"
            raise InvalidRequest(
                f"inputs are {given}; model {self._name!r} takes exactly {', '.join(self._inputs)}"
            )
        for tensor in tensors:
            spec = self._inputs[tensor.name]
            if tensor.datatype != spec.datatype:
                raise InvalidRequest(
                    f"input {tensor.name!r}: datatype is {tensor.datatype}, model {self._name!r} takes {spec.datatype}"
                )
            if len(tensor.shape) != len(spec.shape) or any(
                wanted not in (-1, given)
                for given, wanted in zip(tensor.shape, spec.shape, strict=True)
            ):
                raise InvalidRequest(
                    f"input {tensor.name!r}: shape is {list(tensor.shape)}, model {self._name!r} takes "
                    f"{list(spec.shape)} (-1: any)"
                )
            length = tensor.shape[0] if tensor.shape else 1
            if items is not None and length != items:
                raise InvalidRequest(
                    f"inputs differ in their first dimension: {items} and {length}"
                )
            items = length
        if any(0 in tensor.shape for tensor in tensors):
            return 1  # nothing to compute, however many items of nothing it names
        return max(1, items or 0)

    def _wrong_size(self, given: int, expected: int) -> InvalidRequest:
        if given < expected:
            return InvalidRequest(
                f"unexpected size for input {self._signature.inputs[0].name!r}, expecting {expected - given} "
                f"additional bytes for model {self._name!r}"
            )
        return InvalidRequest(
            f"unexpected additional input data for model {self._name!r}: {given - expected} bytes"
        )

    def _wanted(self, request: Mapping[str, Any]) -> Wanted:
        id_ = request.get("id")
        if id_ is not None and not isinstance(id_, str):
            raise InvalidRequest(f"id is {id_!r}, expected a string")
        parameters = _parameters(request, "the request")
        binary = _flag(parameters, "binary_data_output", default=False)
        listed = request.get("outputs")
        if not listed:
            return Wanted(id_, None, binary)
        if not isinstance(listed, list):
            raise InvalidRequest("outputs is not an array")
        outputs = []
        for item in listed:
            name = item.get("name") if isinstance(item, dict) else None
            if name not in self._outputs:
                raise InvalidRequest(
                    f"requested output {name!r}: model {self._name!r} has {', '.join(sorted(self._outputs))}"
                    + nearest(str(name), self._outputs)
                )
            own = _parameters(item, f"output {name!r}")
            outputs.append((str(name), _flag(own, "binary_data", default=binary)))
        return Wanted(id_, tuple(outputs), binary)

    # Answers

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
        tensors = wire.decode_frame(frame)
        if wanted.outputs is None:
            chosen = [(tensor, wanted.binary) for tensor in tensors]
        else:
            by_name = {tensor.name: tensor for tensor in tensors}
            missing = [name for name, _ in wanted.outputs if name not in by_name]
            if missing:
                raise PredictionFailed(f"the model returned no output {', '.join(missing)}")
            chosen = [(by_name[name], binary) for name, binary in wanted.outputs]
        header = self._header(chosen, wanted.id)
        binary_data = [tensor.data for tensor, binary in chosen if binary]
        return Form(header, len(header) if binary_data else None), b"".join(binary_data)

    def _all_binary(self, frame: memoryview, wanted: Wanted) -> tuple[Form, Buffer]:
        layout, data = wire.split_frame(frame)
        form = self._forms.get((layout, wanted))
        if form is None:
            header = self._header([(t, True) for t in wire.decode_frame(frame)], wanted.id)
            form = Form(header, len(header))
            if wanted.id is None:
                if len(self._forms) >= _CACHED_HEADERS:
                    self._forms.clear()
                self._forms[layout, wanted] = form
        if wanted.id is None:
            self._last_form, self._last_wanted = form, wanted
            self._last_prefix = frame[: layout.prefix_bytes].tobytes()
            self._last_frame_bytes = len(frame)
        return form, data

    def _header(self, chosen: list[tuple[Tensor, bool]], id_: str | None) -> bytes:
        outputs = []
        for tensor, binary in chosen:
            if binary:
                outputs.append(
                    {
                        "name": tensor.name,
                        "datatype": tensor.datatype,
                        "shape": list(tensor.shape),
                        "parameters": {"binary_data_size": len(tensor.data)},
                    }
                )
            else:
                outputs.append(json_tensors.tensor_to_json(tensor))
        response: dict[str, Any] = {"model_name": self._name, "model_version": self._version}
        if id_ is not None:
            response["id"] = id_
        response["outputs"] = outputs
        return json.dumps(response, separators=(",", ":")).encode()

    def metadata(self) -> dict[str, Any]:
        """The model's metadata response."""
        return {"name": self._name, "versions": [self._version], **_metadata(self._signature)}


def _metadata(signature: Signature) -> dict[str, Any]:
    return {
        "platform": signature.platform,
        "inputs": [spec.as_json() for spec in signature.inputs],
        "outputs": [spec.as_json() for spec in signature.outputs],
    }


def _parsed(text: bytes) -> dict[str, Any]:
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


def _inputs(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise InvalidRequest(
            "the request has no array `inputs` of objects with name, shape, datatype and data"
        )
    for item in inputs:
        given = ("data" in item) + ("binary_data_size" in _parameters(item, "an input"))
        if given != 1:
            raise InvalidRequest(
                "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters'; "
                f"input {item.get('name')!r} sets {'both' if given else 'none'}"
            )
    return inputs


def _binary_size(item: Mapping[str, Any], name: str) -> int:
    size = item["parameters"]["binary_data_size"]
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"input {name!r}: binary_data_size is {size!r}, expected a number of bytes"
        )
    return size


def _check_bytes(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> None:
    """Whether binary data holds exactly the elements that the shape names."""
    elements = math.prod(shape)
    if ITEM_BYTES[datatype]:
        if len(data) != elements * ITEM_BYTES[datatype]:
            raise InvalidRequest(
                f"input {name!r}: binary_data_size is {len(data)}, but shape {list(shape)} of {datatype} takes "
                f"{elements * ITEM_BYTES[datatype]} bytes"
            )
        return
    position = count = 0
    while position < len(data):
        if position + 4 > len(data):
            break
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count += 1
    if position != len(data) or count != elements:
        raise InvalidRequest(
            f"input {name!r}: the binary data does not hold {elements} BYTES elements, each with its 4-byte length"
        )


def _parameters(item: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = item.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"parameters of {what} are {parameters!r}, expected an object")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter {name} is {value!r}, expected true or false")
    return value


def _timeout_s(request: Mapping[str, Any]) -> float | None:
    timeout_us = _parameters(request, "the request").get("timeout")
    if timeout_us is None:
        return None
    if (
        isinstance(timeout_us, bool)
        or not isinstance(timeout_us, int | float)
        or not 0 < timeout_us <= LONGEST_TIMEOUT_US
    ):
        raise InvalidRequest(
            f"parameter timeout is {str(timeout_us)[:40]}, expected microseconds above 0 and at most "
            f"{LONGEST_TIMEOUT_US} (a day)"
        )
    return timeout_us * 1e-6
