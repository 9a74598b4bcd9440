"""The messages of inference.proto as classes, in a pool of their own.

The pool is private because clients in the same process, such as `tritonclient`, register messages of
the same names in the default one, which takes each name once.

Packed numbers are told apart from their public form in one point: the fields of
`InferTensorContents` that hold numbers are read and written as `bytes`, which is the same on the
wire. FP32 and FP64 contents then are a tensor's bytes as they are, and whole numbers can be read as
an array (`varints`) instead of element by element.

The fields of a large message are counted before it is parsed, which would make an object of each: 64 MiB of
the shortest ones would be gigabytes, and half a minute of the thread that serves everybody.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from serving.protocol import proto_fields
from serving.protocol.budget import Budget
from serving.values import Buffer

COMPILED = pathlib.Path(__file__).with_name("inference.binpb")
SERVICE = "inference.GRPCInferenceService"
_SMALL_BYTES = 64 * 1024
"""A message up to this has no room for too many fields: they take two bytes each."""


class NotAMessage(ValueError):  # it says what the bytes are
    """Bytes that are not the message that was expected."""


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


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))


def methods() -> dict[str, Any]:
    """Method -> class of its request, of every method of the service."""
    service = _POOL.FindServiceByName(SERVICE)
    return {method.name: _message(method.input_type.name) for method in service.methods}


def parsed(kind: Any, data: Buffer) -> Any:
    """A message from its bytes.

    Raises:
        NotAMessage: they are not one.
        InvalidRequest: it has more fields than a request may have.
    """
    if len(data) > _SMALL_BYTES:
        _spend(kind.DESCRIPTOR, memoryview(data), Budget())
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise NotAMessage(f"the message is no {kind.DESCRIPTOR.full_name}: {error}") from error


def _spend(descriptor: Any, data: memoryview, budget: Budget) -> None:
    """Count the fields of a message, and of the messages within it.

    Raises:
        InvalidRequest: they are too many, or it is malformed.
    """
    inner = _within(descriptor)
    for number, kind, _, content in proto_fields.read(data, budget):
        if kind != proto_fields.BYTES or number not in inner:
            continue
        message = inner[number]
        if message is None:
            budget.spend(len(content))  # packed numbers, which become objects: at most one a byte
        else:
            _spend(message, content, budget)


@functools.cache
def _within(descriptor: Any) -> dict[int, Any]:
    """Number of a field -> the message that it holds, None: numbers; texts and bytes are not there."""
    return {
        number: field.message_type
        for number, field in descriptor.fields_by_number.items()
        if field.cpp_type != FieldDescriptor.CPPTYPE_STRING
    }


def filled(kind: Any, data: dict[str, Any]) -> bytes:
    """The bytes of a message, from its JSON form in the names of its fields."""
    found: bytes = json_format.ParseDict(data, kind()).SerializeToString()
    return found


ModelConfigResponse = _message("ModelConfigResponse")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelMetadataResponse = _message("ModelMetadataResponse")
ModelReadyResponse = _message("ModelReadyResponse")
ModelStatisticsResponse = _message("ModelStatisticsResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
RepositoryIndexResponse = _message("RepositoryIndexResponse")
RepositoryModelLoadResponse = _message("RepositoryModelLoadResponse")
RepositoryModelUnloadResponse = _message("RepositoryModelUnloadResponse")
ServerLiveResponse = _message("ServerLiveResponse")
ServerMetadataResponse = _message("ServerMetadataResponse")
ServerReadyResponse = _message("ServerReadyResponse")
