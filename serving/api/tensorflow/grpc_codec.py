"""Codec of TensorFlow Serving's gRPC services.

Classify and Regress use the same outputs as over REST. Invalid input raises `InvalidRequest`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from serving import wire
from serving.api.open_inference.infer_request import DecodedRequest, tensor_request
from serving.api.open_inference.response_encoder import select_outputs
from serving.api.parsing import proto_fields as fields
from serving.api.parsing.parse_budget import MAX_VALUES, ParseBudget
from serving.api.parsing.tensors import checked_items
from serving.api.tensorflow import examples, rest_codec, tensor_proto
from serving.api.tensorflow.classify_regress import classifications, regressions
from serving.api.tensorflow.examples import MAX_EXAMPLE_FIELDS, Example
from serving.api.tensorflow.model_status import SIGNATURE_NAME, VersionState, version_number
from serving.api.tensorflow.rest_tensors import TYPE_NAMES
from serving.errors import InvalidRequest
from serving.values import Buffer, Signature, Tensor

_STATES = {"LOADING": 20, "AVAILABLE": 30, "END": 50}
_UNKNOWN = 2
_SIGNATURE_DEF = "signature_def"
_MAP_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class Spec(NamedTuple):
    """The model, version and signature that a request names."""

    name: str = ""
    version: str | None = None
    label: str | None = None
    signature_name: str = ""


class TensorFlowGrpcRequest(NamedTuple):
    """A request for any method, with unused fields empty."""

    spec: Spec
    inputs: Mapping[str, memoryview]
    """TensorProtos by name."""
    wanted: tuple[str, ...]
    """Requested outputs or metadata fields; all if empty."""
    examples: Sequence[Example]


Wanted = tuple[rest_codec.Method, tuple[str, ...]]
"""Method and requested outputs of an inference; an empty tuple means all outputs."""


def decode_request(data: Buffer, method: rest_codec.Method | None) -> TensorFlowGrpcRequest:
    """Decode a request for inference, or for metadata or status (method None).

    Raises:
        InvalidRequest: the request is malformed, exceeds a limit, or lacks examples.
    """
    has_examples = method in {"classify", "regress"}
    budget = ParseBudget(MAX_EXAMPLE_FIELDS if has_examples else MAX_VALUES)
    spec, inputs, wanted, listed = Spec(), {}, [], list[Example]()
    for number, kind, _, content in fields.read(memoryview(data), budget):
        if kind != fields.BYTES:
            continue
        if number == 1:
            spec = _spec(content, budget)
        elif has_examples:
            if number == 2:
                listed = examples.decode_examples(content, budget)
        elif number == 2 and method is not None:
            name, value = fields.entry(content, budget)
            inputs[name] = value
        elif number == (2 if method is None else 3):
            wanted.append(fields.text(content))
    if has_examples and not listed:
        raise InvalidRequest("Input is empty.")
    return TensorFlowGrpcRequest(spec, inputs, tuple(wanted), listed)


class TensorFlowGrpcCodec:
    """Decoder and encoder for one model version."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._signature = signature
        self._rest = rest_codec.TensorFlowRestCodec(name, version, signature)
        self._spec = _spec_message(name, version, SIGNATURE_NAME)
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = {spec.name for spec in signature.outputs}

    # Requests

    def query(
        self, request: TensorFlowGrpcRequest, method: rest_codec.Method, timeout_s: float | None
    ) -> DecodedRequest:
        """Decode an inference request, or raise InvalidRequest if it does not fit the model."""
        name = request.spec.signature_name
        if name not in {"", SIGNATURE_NAME}:
            raise InvalidRequest(
                f'Serving signature key "{name[:100]}" not found '
                f"(every model has one, {SIGNATURE_NAME})"
            )
        if method == "predict":
            tensors = self._tensors(request.inputs)
            self._check_outputs(request.wanted)
        else:
            self._rest.check_method(method)
            tensors = examples.tensors(request.examples, self._signature)
        items = checked_items(self._rest.name, self._signature, tensors)
        return tensor_request(tensors, items, (method, request.wanted), timeout_s)

    def _tensors(self, inputs: Mapping[str, memoryview]) -> list[Tensor]:
        expected = ",".join(self._inputs)
        for name in inputs:
            if name not in self._inputs:
                raise InvalidRequest(
                    f"input tensor alias not found in signature: {name[:100]}. "
                    f"Inputs expected to be in the set {{{expected}}}."
                )
        if len(inputs) < len(self._inputs):
            missing = ",".join(name for name in self._inputs if name not in inputs)
            raise InvalidRequest(
                f"input size does not match signature: {len(inputs)}!={len(self._inputs)} "
                f"len({{{','.join(inputs)}}}) != len({{{expected}}}). Missing: {missing}"
            )
        tensors = []
        budget = ParseBudget()
        for spec in self._signature.inputs:
            tensor = tensor_proto.tensor(spec.name, inputs[spec.name], budget)
            if tensor.datatype != spec.datatype:
                raise InvalidRequest(
                    f"Expects input {spec.name!r} to be {TYPE_NAMES[spec.datatype]} but "
                    f"{TYPE_NAMES[tensor.datatype]} is provided"
                )
            tensors.append(tensor)
        return tensors

    def _check_outputs(self, wanted: Sequence[str]) -> None:
        for place, name in enumerate(wanted):
            if name not in self._outputs:
                raise InvalidRequest(
                    f"output tensor alias not found in signature: {name[:100]} Outputs expected to "
                    f"be in the set {{{','.join(sorted(self._outputs))}}}."
                )
            if name in wanted[:place]:
                raise InvalidRequest(f"duplicate output tensor alias: {name}")

    # Responses

    def encode_response(self, frame: memoryview, wanted: Wanted) -> list[Buffer]:
        """Encode a response in pieces, some of them views of the frame.

        Raises InferenceFailed if a requested output is missing.
        """
        method, outputs = wanted
        tensors = wire.decode_frame(frame)
        if method == "predict":
            chosen = select_outputs(tensors, outputs) if outputs else tensors
            return list(self._predict_response(chosen))
        if method == "classify":
            result = b"".join(
                fields.content(1, b"".join(_class(label, score) for label, score in row))
                for row in classifications(tensors, self._signature.outputs)
            )
        else:
            values = np.array(regressions(tensors, self._signature.outputs), dtype="<f4")
            result = b"".join(
                fields.content(1, b"\x0d" + value.tobytes() if value else b"") for value in values
            )
        return [fields.content(1, result) + fields.content(2, self._spec)]

    def encode_in_pieces(self, frame: memoryview, wanted: Wanted) -> Iterator[bytes] | None:
        """Encode a long response in quick steps, or return None if `encode_response` is quick.

        Raises as `encode_response` does.
        """
        method, outputs = wanted
        if len(frame) <= rest_codec.LONG_BYTES or method != "predict":
            return None
        tensors = wire.decode_frame(frame)
        chosen = select_outputs(tensors, outputs) if outputs else tensors
        if not any(tensor.datatype == "BYTES" for tensor in chosen):
            return None
        kept = [tensor._replace(data=bytes(tensor.data)) for tensor in chosen]
        return map(bytes, self._predict_response(kept))

    def _predict_response(self, chosen: Sequence[Tensor]) -> Iterator[Buffer]:
        """Yield a response in pieces; empty pieces are yielded while a length is computed."""
        for tensor in chosen:
            body: list[Buffer] = []
            for piece in tensor_proto.message(tensor):
                body.append(piece)
                yield b""
            body_bytes = sum(map(len, body))
            before = fields.string(1, tensor.name) + fields.opening(2, body_bytes)
            yield fields.opening(1, len(before) + body_bytes) + before
            yield from body
        yield fields.content(2, self._spec)

    def metadata(self, wanted: Sequence[str]) -> bytes:
        """Encode a GetModelMetadataResponse.

        Raises InvalidRequest if anything other than signatures is requested.
        """
        for name in wanted:
            if name != _SIGNATURE_DEF:
                raise InvalidRequest(
                    f"Metadata field {name[:100]} is not supported, expected {_SIGNATURE_DEF}"
                )
        if not wanted:
            raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
        definition = b"".join(
            fields.map_entry(field, spec.name, tensor_proto.info_message(spec))
            for field, specs in ((1, self._signature.inputs), (2, self._signature.outputs))
            for spec in specs
        ) + fields.string(3, "tensorflow/serving/predict")
        signatures = fields.map_entry(1, SIGNATURE_NAME, definition)
        any_ = fields.string(1, _MAP_TYPE) + fields.content(2, signatures)
        spec = _spec_message(self._rest.name, self._rest.version, "")
        return fields.content(1, spec) + fields.map_entry(2, _SIGNATURE_DEF, any_)


def status(versions: Sequence[VersionState]) -> bytes:
    """Encode a GetModelStatusResponse, with non-numeric versions as 0."""
    return b"".join(
        fields.content(
            1,
            fields.number(1, version_number(version) or 0)
            + fields.number(2, _STATES[state])
            + fields.content(
                3, fields.number(1, _UNKNOWN) + fields.content(2, error.encode()) if error else b""
            ),
        )
        for version, state, error in versions
    )


def _spec(message: memoryview, budget: ParseBudget) -> Spec:
    spec = Spec()
    for number, kind, _, content in fields.read(message, budget):
        if kind != fields.BYTES:
            continue
        match number:
            case 1:
                spec = spec._replace(name=fields.text(content))
            case 2:
                version = 0
                for inner, inner_kind, value, _ in fields.read(content, budget):
                    if inner == 1 and inner_kind == fields.VARINT:
                        version = fields.as_signed(value)
                spec = spec._replace(version=str(version), label=None)
            case 3:
                spec = spec._replace(signature_name=fields.text(content))
            case 4:
                spec = spec._replace(label=fields.text(content), version=None)
    return spec


def _spec_message(name: str, version: str, signature_name: str) -> bytes:
    number = version_number(version)
    given = b"" if number is None else fields.content(2, fields.number(1, number))
    return fields.string(1, name) + given + fields.string(3, signature_name)


def _class(label: str, score: float) -> bytes:
    value = b"\x15" + struct.pack("<f", score) if score else b""
    return fields.content(1, fields.string(1, label) + value)
