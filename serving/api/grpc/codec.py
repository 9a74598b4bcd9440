"""Inference requests and responses of one deployment: protobuf <-> wire.

Responses use the request's form, raw or typed, but are raw if an output is long or has no typed
form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serving import wire
from serving.api.grpc import contents, messages
from serving.api.parsing import tensors as checks
from serving.api.parsing import varints
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.triton import classification, unsupported
from serving.api.triton.classification import classify
from serving.error_text import nearest, short_repr
from serving.errors import InferenceFailed, InvalidRequest
from serving.values import Buffer, Signature, Tensor, TensorSpec

_RAW_OUTPUT = b"\x32"
"""Tag of field 6 of a response, `raw_output_contents`."""
_REMEMBERED = 256
_LONG_BYTES = 2**20


class GrpcOutputRequest(NamedTuple):
    """Requested contents and form of a response."""

    id: str
    outputs: tuple[str, ...] | None
    """Names of outputs in order, or None for all outputs."""
    raw: bool
    classes: tuple[tuple[str, int], ...] = ()
    """Outputs to return as their best classes, with the number of classes."""


class GrpcInferRequest(NamedTuple):
    """A decoded inference request."""

    frame: tuple[Buffer, ...]
    frame_bytes: int
    encoding: int
    items: int
    wanted: GrpcOutputRequest
    timeout_s: float | None
    """Time limit, or None for the server's default."""
    priority: int


class GrpcCodec:
    """Codec for one deployment."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._signature = signature
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._starts: dict[tuple[wire.Layout, GrpcOutputRequest], tuple[bytes, ...]] = {}

    # Requests

    def query(self, request: Any) -> GrpcInferRequest:
        """Decode a ModelInferRequest, or raise InvalidRequest."""
        inputs, raw = request.inputs, list(request.raw_input_contents)
        if raw and len(raw) != len(inputs):
            raise InvalidRequest(
                f"raw_input_contents has {len(raw)} entries for {len(inputs)} inputs; if "
                "it is used, it must have one entry per input, in order"
            )
        checks.check_count(self._name, self._signature, len(inputs))
        declared = [_parse_input_header(given) for given in inputs]
        items = checks.checked_items(self._name, self._signature, declared)
        tensors = _raw_tensors(inputs, declared, raw) if raw else _typed_tensors(inputs, declared)
        outputs, classes = self._wanted_outputs(request.outputs)
        wanted = GrpcOutputRequest(request.id, outputs, bool(raw), classes)
        parameters = messages.parameters(request.parameters)
        descriptor = wire.encode_descriptor(tensors)
        frame = (descriptor, *[tensor.data for tensor in tensors])
        return GrpcInferRequest(
            frame,
            sum(map(len, frame)),
            wire.Encoding.TENSORS,
            items,
            wanted,
            checks.timeout_s(parameters.get("timeout")),
            checks.priority(parameters.get("priority")),
        )

    def _wanted_outputs(
        self, listed: Any
    ) -> tuple[tuple[str, ...] | None, tuple[tuple[str, int], ...]]:
        if not listed:
            return None, ()
        names: list[str] = []
        classes = []
        for output in listed:
            name, given = output.name, output.parameters
            if name not in self._outputs:
                raise InvalidRequest(
                    f"output {short_repr(name)} is not one of model {self._name!r}"
                    f"{nearest(name, self._outputs)} (outputs: {', '.join(sorted(self._outputs))})"
                )
            if name in names:
                raise InvalidRequest(f"an output is requested twice: {name}")
            names.append(name)
            if given:
                unsupported.check_tensor("output", name, given)
                parameters = messages.parameters(given)
                count = classification.requested_classes(self._outputs[name], parameters)
                classes += [(name, count)] if count else []
        return tuple(names), tuple(classes)

    # Responses

    def encode_response(self, frame: memoryview, wanted: GrpcOutputRequest) -> list[Buffer]:
        """Encode a ModelInferResponse in pieces, or raise InferenceFailed for a missing output."""
        if wanted.classes:
            frame = self._classify_outputs(frame, dict(wanted.classes))
        layout, data = wire.split_frame(frame)
        chosen = layout.tensors
        if wanted.outputs is not None:
            by_name = {tensor.name: tensor for tensor in chosen}
            missing = [name for name in wanted.outputs if name not in by_name]
            if missing:
                raise InferenceFailed(f"the model returned no output {', '.join(missing)}")
            chosen = tuple([by_name[name] for name in wanted.outputs])
        if chosen and (wanted.raw or any(map(_is_raw, chosen))):
            heads = self._starts.get((layout, wanted))
            if heads is None:
                heads = self._raw_heads(layout, chosen, wanted)
            pieces: list[Buffer] = []
            for head, tensor in zip(heads, chosen, strict=True):
                pieces += (head, data[tensor.start : tensor.stop])
            return pieces
        response = self._response(wanted)
        for name, datatype, shape, start, stop in chosen:
            output = response.outputs.add(name=name, datatype=datatype, shape=shape)
            contents.pack(Tensor(name, datatype, shape, data[start:stop]), output.contents)
        return [response.SerializeToString()]

    def _classify_outputs(self, frame: memoryview, counts: Mapping[str, int]) -> memoryview:
        tensors = []
        for tensor in wire.decode_frame(frame):
            classes = counts.get(tensor.name)
            tensors.append(classify(tensor, classes, self._signature) if classes else tensor)
        descriptor = wire.encode_descriptor(tensors)
        return memoryview(b"".join((descriptor, *(tensor.data for tensor in tensors))))

    def _raw_heads(
        self, layout: wire.Layout, chosen: tuple[wire.TensorLayout, ...], wanted: GrpcOutputRequest
    ) -> tuple[bytes, ...]:
        response = self._response(wanted)
        for name, datatype, shape, _, _ in chosen:
            response.outputs.add(name=name, datatype=datatype, shape=shape)
        heads = [_RAW_OUTPUT + varints.one(tensor.stop - tensor.start) for tensor in chosen]
        heads[:1] = [response.SerializeToString() + b"".join(heads[:1])]
        found = tuple(heads)
        if not wanted.id:
            if len(self._starts) >= _REMEMBERED:
                self._starts.clear()
            self._starts[layout, wanted] = found
        return found

    def _response(self, wanted: GrpcOutputRequest) -> Any:
        return messages.ModelInferResponse(
            model_name=self._name, model_version=self._version, id=wanted.id
        )

    def metadata(self, versions: Sequence[str]) -> bytes:
        """Encode a ModelMetadataResponse."""
        signature = self._signature
        data = {
            "name": self._name,
            "versions": list(versions),
            "platform": signature.platform,
            "inputs": [_spec_json(spec) for spec in signature.inputs],
            "outputs": [_spec_json(spec) for spec in signature.outputs],
        }
        return messages.encode("ModelMetadataResponse", data)


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _raw_tensors(inputs: Any, declared: list[Tensor], raw: list[bytes]) -> list[Tensor]:
    tensors = []
    budget = ParseBudget(what="elements of BYTES")
    for given, (name, datatype, shape, _), data in zip(inputs, declared, raw, strict=True):
        if given.contents.ListFields():
            raise InvalidRequest(
                f"input {name!r} has contents as well as raw_input_contents; a request "
                "uses one of the two"
            )
        checks.check_bytes(name, datatype, shape, data, budget)
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _typed_tensors(inputs: Any, declared: list[Tensor]) -> list[Tensor]:
    tensors = []
    for given, (name, datatype, shape, _) in zip(inputs, declared, strict=True):
        data = contents.unpack(name, datatype, shape, given.contents)
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _parse_input_header(given: Any) -> Tensor:
    shape = tuple(given.shape)
    checks.check_declared(given.name, given.datatype, shape)
    unsupported.check_tensor("input", given.name, given.parameters)
    return Tensor(given.name, given.datatype, shape, b"")


def _is_raw(tensor: wire.TensorLayout) -> bool:
    """Whether an output has no typed form, or only a slow one."""
    if tensor.datatype not in contents.FIELDS:
        return True
    return tensor.stop - tensor.start > _LONG_BYTES and tensor.datatype not in contents.AS_THEY_ARE
