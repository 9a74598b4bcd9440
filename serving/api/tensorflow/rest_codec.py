"""Codec of TensorFlow Serving's REST protocol.

Predict takes rows (`instances`, answered by `predictions`) or columns (`inputs`, answered by
`outputs`). Invalid input raises `InvalidRequest`, with TensorFlow Serving's messages where clients
match on them. Source: its REST documentation and, where that is silent, its server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from serving import wire
from serving.api.open_inference.infer_request import DecodedRequest, tensor_request
from serving.api.open_inference.skeleton import LARGE_JSON_BYTES
from serving.api.parsing.bounded_json import MAX_JSON_BYTES, JsonError, read, short_json, write
from serving.api.parsing.tensors import checked_items
from serving.api.tensorflow import examples, rest_tensors
from serving.api.tensorflow.classify_regress import (
    classifications,
    regressions,
    scores_output,
    value_output,
)
from serving.api.tensorflow.model_status import SIGNATURE_NAME
from serving.api.tensorflow.rest_outputs import (
    tensor_to_json,
    tensor_to_json_pieces,
    written_rows,
)
from serving.api.tensorflow.rest_unparsed import read_large
from serving.errors import InferenceFailed, InvalidRequest
from serving.tensors.item_axes import why_no_rows
from serving.values import Signature, Tensor, TensorSpec

Method = Literal["predict", "classify", "regress"]
Form = Literal["row", "columnar", "classify", "regress"]
"""Contents of the response: rows, columns, classes or numbers."""

LONG_BYTES = 64 * 1024
"""Size above which outputs are written in pieces, to let other requests run."""


class JsonBody(NamedTuple):
    """Parsed JSON object from a body."""

    document: Mapping[str, Any]
    infinities: bool
    """Whether the JSON has the token Infinity, so that infinities are intended."""


def request(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> JsonBody:
    """Parse a body, or raise InvalidRequest unless it is a JSON object of limited size."""
    if not body:
        raise InvalidRequest("JSON Parse error: The document is empty")
    try:
        document = read(body, constants=True, max_bytes=max_json_bytes)
    except JsonError as error:
        raise InvalidRequest(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"JSON Value: {short_json(document)} Is not object")
    return JsonBody(document, b"Infinity" in body)


class TensorFlowRestCodec:
    """Decoder and encoder for one model version."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self.name = name
        self.version = version
        self._signature = signature
        self._inputs = {spec.name for spec in signature.inputs}
        self._why_no_rows = why_no_rows(signature)

    # Requests

    def query(self, given: JsonBody, method: Method) -> DecodedRequest:
        """Decode an inference request, or raise InvalidRequest."""
        self._check_signature_name(given.document)
        if method == "predict":
            form, tensors = self._predict(given)
        else:
            self.check_method(method)
            form = method
            tensors = examples.tensors(examples.read_examples(given.document), self._signature)
        items = checked_items(self.name, self._signature, tensors)
        return tensor_request(tensors, items, form)

    def large_query(self, body: bytes) -> DecodedRequest | None:
        """Return a predict request that leaves parsing its numbers to the replica, or None.

        The body must hold one large, evenly nested array of numbers, for the only input.

        Raises:
            InvalidRequest: the shape does not fit the model.
        """
        specs = self._signature.inputs
        if len(body) <= LARGE_JSON_BYTES or len(specs) != 1:
            return None
        found = read_large(body, specs[0])
        if found is None:
            return None
        if found.form == "row":
            self._check_rows()
        declared = Tensor(specs[0].name, specs[0].datatype, found.shape, b"")
        items = checked_items(self.name, self._signature, [declared])
        frame_bytes = sum(map(len, found.frame))
        return DecodedRequest(
            found.frame, frame_bytes, wire.Encoding.OIP_JSON, items, found.form, None, 0
        )

    def _check_signature_name(self, document: Mapping[str, Any]) -> None:
        name = document.get("signature_name", "")
        if not isinstance(name, str):
            raise InvalidRequest(
                f"JSON Value: {short_json(document)} not formatted correctly. 'signature_name' key must "
                "be a string value."
            )
        if name not in {"", SIGNATURE_NAME}:
            raise InvalidRequest(
                f'Serving signature name: "{name[:100]}" not found in signature def '
                f"(every model has one, {SIGNATURE_NAME})"
            )

    def check_method(self, method: Method) -> None:
        """Check that the model supports classify or regress.

        Raises:
            InvalidRequest: the model does not take rows, or has no suitable output.
        """
        self._check_rows()
        outputs = self._signature.outputs
        chosen = scores_output(outputs) if method == "classify" else value_output(outputs)
        if chosen is None:
            raise InvalidRequest(
                f'Expected {method} signature method_name to be "tensorflow/serving/{method}". Was: '
                f'"tensorflow/serving/predict"; model {self.name!r} has no output of numbers to take'
            )

    def _check_rows(self) -> None:
        if self._why_no_rows:
            raise InvalidRequest(
                f"model {self.name!r} does not accept rows (instances, examples): "
                f"{self._why_no_rows}; use predict with whole tensors by name as 'inputs'"
            )

    def _predict(self, given: JsonBody) -> tuple[Form, list[Tensor]]:
        document = given.document
        if "instances" in document and "inputs" in document:
            raise InvalidRequest(
                f"JSON Value: {short_json(document)} Not formatted correctly expecting only one of "
                "'inputs' or 'instances' keys to exist"
            )
        if "instances" in document:
            return "row", self._row_tensors(document, given.infinities)
        if "inputs" in document:
            return "columnar", self._columnar_tensors(document["inputs"], given.infinities)
        raise InvalidRequest("Missing 'inputs' or 'instances' key")

    def _row_tensors(self, document: Mapping[str, Any], infinities: bool) -> list[Tensor]:
        self._check_rows()
        instances = document["instances"]
        if not isinstance(instances, list):
            raise InvalidRequest(
                f"JSON Value: {short_json(document)} Excepting 'instances' to be an list/array"
            )
        if not instances:
            raise InvalidRequest(
                f"JSON Value: {short_json(document)} No values in 'instances' array"
            )
        specs = self._signature.inputs
        if not _is_named(instances[0]):
            if len(specs) > 1:
                raise InvalidRequest(
                    "instances is a plain list, but expecting list of objects as multiple input "
                    "tensors required as per tensorinfo_map"
                )
            for position, item in enumerate(instances):
                if _is_named(item):
                    raise InvalidRequest(
                        f"Expecting value/list but got object at item {position} of input list"
                    )
            columns: list[tuple[TensorSpec, list[Any], str | None]] = [(specs[0], instances, None)]
        else:
            self._check_keys(instances)
            columns = [(spec, [item[spec.name] for item in instances], spec.name) for spec in specs]
        return [
            Tensor(
                spec.name,
                spec.datatype,
                *rest_tensors.rows(values, spec.datatype, key, infinities=infinities),
            )
            for spec, values, key in columns
        ]

    def _check_keys(self, instances: Sequence[Any]) -> None:
        for position, item in enumerate(instances):
            if not _is_named(item):
                raise InvalidRequest(
                    f"Expecting object but got list at item {position} of input list"
                )
            unknown = [name for name in item if name not in self._inputs]
            if unknown:
                raise InvalidRequest(
                    f"Failed to process element: {position} key: {unknown[0][:100]} of 'instances' "
                    "list. Error: INVALID_ARGUMENT: JSON object: does not have named input: "
                    f"{unknown[0][:100]}"
                )
            if item.keys() != self._inputs:
                raise InvalidRequest(
                    f"Failed to process element: {position} of 'instances' list. JSON object: "
                    f"{short_json(item)} keys must be equal to: {','.join(sorted(self._inputs))}"
                )

    def _columnar_tensors(self, inputs: object, infinities: bool) -> list[Tensor]:
        specs = self._signature.inputs
        if not _is_named(inputs):
            if len(specs) > 1:
                raise InvalidRequest(
                    "inputs is a plain value/list, but expecting an object as multiple input "
                    "tensors required as per tensorinfo_map"
                )
            values = {specs[0].name: inputs}
        else:
            assert isinstance(inputs, dict)
            values = inputs
        tensors = []
        for spec in specs:
            if spec.name not in values:
                raise InvalidRequest(f"Missing named input: {spec.name} in 'inputs' object.")
            tensor = rest_tensors.dense(values[spec.name], spec.datatype, infinities=infinities)
            tensors.append(Tensor(spec.name, spec.datatype, *tensor))
        return tensors

    # Responses

    def encode_response(self, frame: memoryview, form: Form) -> list[bytes]:
        """Encode a response from a tensors frame, in pieces.

        Raises:
            InvalidRequest: the outputs' first dimensions differ.
            InferenceFailed: the outputs are invalid.
        """
        tensors = wire.decode_frame(frame)
        match form:
            case "classify":
                results: list[Any] = classifications(tensors, self._signature.outputs)
                data = {"results": results}
            case "regress":
                data = {"results": regressions(tensors, self._signature.outputs)}
            case "row" if len(tensors) > 1:  # `written_rows` is for long responses, and slower
                data = {"predictions": _rows(tensors)}
            case _:
                return list(_pieces(tensors, form))
        return [write(data, constants=True).encode()]

    def encode_in_pieces(self, frame: memoryview, form: Form) -> Iterator[bytes] | None:
        """Encode a long response in quick steps, or return None if `encode_response` is quick.

        Raises as `encode_response` does, InferenceFailed also between pieces.
        """
        if len(frame) <= LONG_BYTES or form not in {"row", "columnar"}:
            return None
        return _pieces(wire.decode_frame(memoryview(bytes(frame))), form)


def _pieces(tensors: Sequence[Tensor], form: Form) -> Iterator[bytes]:
    if not tensors:
        raise InferenceFailed("Cannot convert empty tensor map to JSON")
    key, several = b'{"outputs":', _columns
    if form == "row":
        _check_rows_of(tensors)
        key, several = b'{"predictions":', written_rows
    pieces = tensor_to_json_pieces(tensors[0]) if len(tensors) == 1 else several(tensors)
    return itertools.chain([key], pieces, [b"}"])


def _rows(tensors: Sequence[Tensor]) -> list[Any]:
    _check_rows_of(tensors)
    names = [tensor.name for tensor in tensors]
    columns = [tensor_to_json(tensor) for tensor in tensors]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _columns(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    for place, tensor in enumerate(tensors):
        yield (b"," if place else b"{") + write(tensor.name).encode() + b":"
        yield from tensor_to_json_pieces(tensor)
    yield b"}"


def _check_rows_of(tensors: Sequence[Tensor]) -> None:
    count = None
    for tensor in tensors:
        if not tensor.shape:
            raise InvalidRequest(f"Tensor name: {tensor.name} has no shape information")
        if count is not None and tensor.shape[0] != count:
            raise InvalidRequest(
                f"Tensor name: {tensor.name} has inconsistent batch size: {tensor.shape[0]} "
                f"expecting: {count}"
            )
        count = tensor.shape[0]


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and not rest_tensors.is_b64(value)
