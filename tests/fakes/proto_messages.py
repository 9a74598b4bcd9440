"""Message classes of a .proto file, made by protobuf itself: an independent reader and writer for tests.

Reads the part of the language that the file uses: messages, nested ones, maps, oneofs, repeated.
"""

import pathlib
import re

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_KINDS, f"TYPE_{name.upper()}")
    for name in (
        "double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32",
    )
}  # fmt: skip
_FIELD = re.compile(
    r"(?P<repeated>repeated )?(?:map<string, (?P<value>\w+)>|(?P<type>\w+)) (?P<name>\w+) = (?P<number>\d+)"
)


def classes(path):
    """Name -> class of every message of a file."""
    text = re.sub(r"//.*", "", pathlib.Path(path).read_text(encoding="utf-8"))
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", syntax="proto3")
    file.package = re.search(r"package ([\w.]+);", text)[1]
    position = 0
    while match := re.compile(r"message (\w+) \{").search(text, position):
        position = _message(file.message_type.add(name=match[1]), text, match.end(), file.package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }


def _message(message, text, position, package):
    """Fill a message from what stands after its opening brace; returns where it ends."""
    depth = 0
    for token in re.compile(r"message (\w+) \{|oneof \w+ \{|\}|[^;{}]+;").finditer(text, position):
        found = token[0]
        if token.start() < position:
            continue
        if found == "}":
            if not depth:
                return token.end()
            depth -= 1
        elif found.startswith("oneof"):
            depth += 1
        elif token[1]:
            position = _message(
                message.nested_type.add(name=token[1]),
                text,
                token.end(),
                f"{package}.{message.name}",
            )
        else:
            _field(message, _FIELD.search(found), package)
    raise ValueError("a message does not end")


def _field(message, match, package):
    field = message.field.add(name=match["name"], number=int(match["number"]))
    field.label = _KINDS.LABEL_REPEATED if match["repeated"] or match["value"] else 1
    if match["value"]:
        entry = message.nested_type.add(name=f"{match['name'].title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=_SCALARS["string"])
        value = entry.field.add(name="value", number=2, label=1, type=_KINDS.TYPE_MESSAGE)
        value.type_name = f".{package}.{match['value']}"
        field.type = _KINDS.TYPE_MESSAGE
        field.type_name = f".{package}.{message.name}.{entry.name}"
    elif match["type"] in _SCALARS:
        field.type = _SCALARS[match["type"]]
    else:
        field.type = _KINDS.TYPE_MESSAGE
        inner = [nested.name for nested in message.nested_type]
        where = f"{package}.{message.name}" if match["type"] in inner else package
        field.type_name = f".{where}.{match['type']}"
