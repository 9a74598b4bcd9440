"""Rows of the record: what Luthier writes is read; what somebody has edited to nonsense is one error."""

import json

import pytest

from serving.errors import InvalidSettings
from serving.state import record_schema
from serving.state.records import RecordKey

CARD = {
    "name": "m", "version": "1", "kind": "echo", "path": None, "program": None,
    "description": "", "sample": None, "quality": {},
}  # fmt: skip
ENTRY = {
    "current": "1", "previous": None, "labels": {"canary": "1"}, "shares": {"1": 0.5}, "shadow": None,
    "versions": ["1"],
}  # fmt: skip
REGISTERED = {
    "name": "m", "version": "1", "input_type": "bytes", "labels": [], "container_name": "",
    "model_data_path": "", "batch_size": 1, "is_valid": True,
}  # fmt: skip
PROGRAM = {"words": ["run"], "folder": "/"}
PROFILE = {
    "signature": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": [], "platform": ""},
    "reads_json": True, "load_s": 0.01, "batch_s": {"1": 0.001, "8": 0.004},
    "stages_s": {"1": [0.0, 0.001, 0.0]}, "memory_bytes": 4096,
    "told": {"load_s": 0.02, "device": "cpu", "warmup": {}, "optimised": None},
}  # fmt: skip
ROWS = [
    (RecordKey(record_schema.SETTING, "batching.max_size"), {"value": 8, "instead_of": 4}),
    (RecordKey(record_schema.VERSION, "m", "1"), {"card": CARD}),
    (RecordKey(record_schema.VERSION, "m", "1"), {"card": {**CARD, "program": PROGRAM}}),
    (RecordKey(record_schema.VERSION, "m", "1"), {"folder": True}),
    (RecordKey(record_schema.RETIRED, "m", "1"), {"files": [["model.onnx", 12, 34]]}),
    (RecordKey(record_schema.MODEL, "m"), ENTRY),
    (RecordKey(record_schema.APPLICATION, "a"), {"name": "a"}),
    (RecordKey(record_schema.REGISTERED, "m", "1"), REGISTERED),
    (RecordKey(record_schema.CURRENT, "m"), "1"),
    (RecordKey(record_schema.PROFILE, "{}"), PROFILE),
]


@pytest.mark.parametrize(("key", "data"), ROWS)
def test_a_row_is_read_as_it_was_written(key, data):
    """Every kind."""
    assert record_schema.read(key, json.dumps(data)) == data


@pytest.mark.parametrize(("key", "data"), ROWS)
@pytest.mark.parametrize("text", ["", "{", "null", "3", "[]", '{"a": 1}', "[" * 100_000])
def test_nonsense_is_one_error(key, data, text):
    """Of every kind, and of a kind that nobody knows."""
    with pytest.raises(InvalidSettings):
        record_schema.read(key, text)
    with pytest.raises(InvalidSettings, match="expected one of setting, version"):
        record_schema.read(key._replace(kind="colour"), json.dumps(data))
    with pytest.raises(InvalidSettings, match="not strings"):
        record_schema.read(key, b"a blob")


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (1, {"card": {**CARD, "version": 1}}),
        (9, {**PROFILE, "batch_s": {}}),
        (9, {**PROFILE, "batch_s": {"0": 0.001}}),
        (9, {**PROFILE, "batch_s": {"1" * 5000: 0.001}}),
        (9, {**PROFILE, "batch_s": {"1": "short"}}),
        (9, {**PROFILE, "load_s": -1.0}),
        (9, {**PROFILE, "load_s": float("inf")}),
        (9, {**PROFILE, "stages_s": {"1": [0.0, 0.001]}}),
        (9, {**PROFILE, "memory_bytes": 0.5}),
        (9, {**PROFILE, "signature": {"inputs": [{}]}}),
        (9, {**PROFILE, "told": {**PROFILE["told"], "device": 3}}),
        (9, {**PROFILE, "told": {**PROFILE["told"], "optimised": True}}),
        (9, {**PROFILE, "told": {"load_s": 0.02, "device": "cpu", "warmup": {}}}),
        (1, {"card": {**CARD, "name": "other"}}),
        (1, {"card": {**CARD, "path": 3}}),
        (1, {"card": {**CARD, "program": {"words": "run", "folder": "/"}}}),
        (3, {"folder": "yes"}),
        (4, {"files": [["model.onnx", "12", 34]]}),
        (5, {**ENTRY, "labels": {"canary": 1}}),
        (5, {**ENTRY, "shares": {"1": float("nan")}}),
        (5, {**ENTRY, "shares": {"1": 0.75, "2": 0.75}}),
        (5, {**ENTRY, "versions": "12"}),
        (6, {"name": "other"}),
        (7, {**REGISTERED, "batch_size": "many"}),
        (7, {**REGISTERED, "colour": "red"}),
    ],
)
def test_a_value_that_cannot_stand_there_is_refused(row, change):
    """Of a wrong type, of another row, or out of range."""
    with pytest.raises(InvalidSettings, match="not valid for a row of this kind"):
        record_schema.read(ROWS[row][0], json.dumps(change))
