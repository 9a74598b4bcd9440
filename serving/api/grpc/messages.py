"""Message classes of inference.proto.

The descriptor pool is private, since clients such as `tritonclient` register the same names. Number
fields of `InferTensorContents` are declared `bytes`, with the same encoding, so that contents are
bytes or arrays (`varints`). The fields of a large message are counted before parsing.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from serving.api.parsing import proto_fields
from serving.api.parsing.parse_budget import ParseBudget
from serving.errors import InvalidRequest
from serving.values import Buffer

COMPILED = pathlib.Path(__file__).with_name("inference.binpb")
SERVICE = "inference.GRPCInferenceService"
_SMALL_BYTES = 64 * 1024


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    for file in files.file:
        for message in file.message_type:
            if message.name == "InferTensorContents":
                for field in message.field:
                    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        pool.Add(file)
    return pool


_POOL = _pool()


@functools.cache
def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))


def methods() -> dict[str, Any]:
    """Return the request class of each method."""
    service = _POOL.FindServiceByName(SERVICE)
    return {method.name: _message(method.input_type.name) for method in service.methods}


def parse(kind: Any, data: Buffer) -> Any:
    """Parse a message, or raise InvalidRequest if it is malformed or has too many fields."""
    if len(data) > _SMALL_BYTES:
        _spend(kind.DESCRIPTOR, memoryview(data), ParseBudget())
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidRequest(
            f"the message is not of type {kind.DESCRIPTOR.full_name}: {error}"
        ) from error


def _spend(descriptor: Any, data: memoryview, budget: ParseBudget) -> None:
    inner = _within(descriptor)
    for number, kind, _, content in proto_fields.read(data, budget):
        if kind != proto_fields.BYTES or number not in inner:
            continue
        message = inner[number]
        if message is None:
            budget.spend(len(content))  # packed numbers become objects, at most one per byte
        else:
            _spend(message, content, budget)


@functools.cache
def _within(descriptor: Any) -> dict[int, Any]:
    return {
        number: field.message_type
        for number, field in descriptor.fields_by_number.items()
        if field.cpp_type != FieldDescriptor.CPPTYPE_STRING
    }


def parameters(given: Any) -> dict[str, object]:
    """Return the values in a map of parameters; a parameter without a value is None."""
    fields = {name: one.WhichOneof("parameter_choice") for name, one in given.items()}
    return {name: getattr(given[name], field) if field else None for name, field in fields.items()}


def encode(name: str, data: dict[str, Any]) -> bytes:
    """Encode a message of the given type from JSON data."""
    found: bytes = json_format.ParseDict(data, _message(name)()).SerializeToString()
    return found


ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
