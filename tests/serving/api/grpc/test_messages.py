"""inference.proto, its compiled form, and the clients of others agree."""

import re
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from serving.api.grpc import messages

SOURCE = messages.COMPILED.with_name("inference.proto").read_text(encoding="utf-8")
FILE = descriptor_pb2.FileDescriptorSet.FromString(messages.COMPILED.read_bytes()).file[0]


def numbered(message, prefix=""):
    """(message.field, number, type, label) of a message and of those inside it; of an enumeration (name, number)."""
    name = prefix + message.name
    for field in message.field:
        yield f"{name}.{field.name}", field.number, field.type, field.label
    for enumeration in message.enum_type:
        yield from ((f"{name}.{value.name}", value.number) for value in enumeration.value)
    for inner in message.nested_type:
        yield from numbered(inner, f"{name}.")


def rows(file):
    found = {row for message in file.message_type for row in numbered(message)}
    return found | {(one.name, one.number) for enum in file.enum_type for one in enum.value}


OURS = rows(FILE)
NOT_IN_TRITON = "ModelMetadataResponse.properties", "ModelMetadataResponse.PropertiesEntry"
"""The protocol has them, Triton's form of it does not."""


def theirs():
    found = set()
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found |= rows(file)
    return found


def test_tritons_messages_have_the_same_fields():
    """Every field has the number, type and label that Triton's client has for it."""
    assert {row for row in OURS - theirs() if not row[0].startswith(NOT_IN_TRITON)} == set()


def test_tritons_service_has_the_same_methods():
    """Every method has Triton's name and messages."""
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == messages.SERVICE
    for method in FILE.service[0].method:
        there = service.methods_by_name[method.name]
        assert method.input_type == f".{there.input_type.full_name}"
        assert method.output_type == f".{there.output_type.full_name}"


def test_the_compiled_form_is_that_of_the_source():
    """Names and numbers in inference.proto are those of inference.binpb."""
    written = {
        (name, int(number))
        for name, number in re.findall(r"^ +(?:\w[\w<>, .]* )?(\w+) = (\d+);", SOURCE, re.MULTILINE)
    }
    compiled = {(row[0].rpartition(".")[2], row[1]) for row in OURS if "Entry." not in row[0]}
    assert written == compiled
    assert re.findall(r"^message (\w+)", SOURCE, re.MULTILINE) == [
        m.name for m in FILE.message_type
    ]
    assert re.findall(r"rpc (\w+)", SOURCE) == [m.name for m in FILE.service[0].method]


def test_compiling_again_changes_nothing():
    """Where the compiler is installed: docs/generate_messages.py writes what is there."""
    pytest.importorskip("grpc_tools")
    done = subprocess.run(
        [sys.executable, "docs/generate_messages.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
