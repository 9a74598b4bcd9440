"""docs/replica-wire.md and the codec say the same."""

import pathlib
import re
import struct

import pytest

from serving import wire
from serving.values import ITEM_BYTES, Tensor

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "replica-wire.md"


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def _rows(text, heading):
    """First two columns of the table below a heading row."""
    table = text.split(heading)[1].split("\n\n")[0]
    return dict(re.findall(r"^\| (\d+) \| (\w+) \|", table, re.MULTILINE))


def _example(text, number):
    block = text.split("## Example")[1].split("```")[2 * number + 1]
    return bytes.fromhex("".join(line[:51] for line in block.strip().splitlines()))


def test_the_example_of_an_answer_is_what_the_codec_writes(text):
    """The bytes of the page's RESULT are those that the encoder makes."""
    data = struct.pack("<2f", 0.5, 2)
    frame = wire.encode_descriptor([Tensor("y", "FP32", (1, 2), data)]) + data
    times = wire.ReplicaTimes(1_000_000_000, 1_000, 20_000, 500)
    head = wire.result_head(7, 0, times, [(len(frame), 0)])
    assert (head + frame).hex(" ") == _example(text, 1).hex(" ")


def test_the_example_is_what_the_codec_writes(text):
    """The bytes of the page's example are those that the encoder makes."""
    written = _example(text, 0)
    descriptor = wire.encode_descriptor([Tensor("x", "UINT8", (1, 3), b"\1\2\3")])
    frame = descriptor + b"\1\2\3"
    head = wire.infer_head(7, 1, 0, 0, [(len(frame), wire.Encoding.TENSORS, 0, 0)])
    assert (head + frame).hex(" ") == written.hex(" ")


def test_message_types_are_listed(text):
    """Every message type stands in the page with its number."""
    listed = _rows(text, "| type | name | from | body |")
    assert listed == {str(int(kind)): kind.name for kind in wire.MessageType}


def test_statuses_are_listed(text):
    """Every status stands in the page with its number."""
    listed = _rows(text, "| status | name | meaning |")
    assert listed == {str(int(status)): status.name for status in wire.ActionStatus}


def test_datatypes_are_listed(text):
    """Every datatype stands in the page with its code."""
    listed = _rows(text, "| code | datatype | bytes of an element |")
    assert listed == {str(code): name for code, name in enumerate(ITEM_BYTES)}


def test_features_are_listed(text):
    """Every feature of HELLO is explained."""
    assert all(f"| `{feature}` |" in text for feature in wire.FEATURES)
