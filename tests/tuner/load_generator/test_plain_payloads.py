"""Bodies for servers that do not tell what they take."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from tuner.errors import UsageError
from tuner.load_generator import plain_payloads


def sample(folder: pathlib.Path, **arrays: np.ndarray) -> pathlib.Path:
    path = folder / "sample.npz"
    np.savez(path, **arrays)
    return path


def test_a_body_is_the_bytes_of_one_item(tmp_path: pathlib.Path) -> None:
    """Little-endian, with the labels beside them."""
    images = np.arange(12, dtype=">i2").reshape(3, 4)
    path = sample(tmp_path, image=images, labels=np.array([1, 2, 3]))
    found = plain_payloads.tensors(path, to="/x", method="POST", headers={}, response="FP32")
    assert found.requests[1] == np.array([4, 5, 6, 7], dtype="<i2").tobytes()
    assert found.labels is not None
    assert found.labels.tolist() == [[1], [2], [3]]
    assert found.headers == {"Content-Type": "application/octet-stream"}


def test_instances_are_values_or_mappings(tmp_path: pathlib.Path) -> None:
    """Of one input its value, of several a mapping."""
    one = plain_payloads.instances(sample(tmp_path, x=np.ones((2, 2))), to="/x", headers={})
    assert json.loads(one.requests[0]) == {"instances": [[1.0, 1.0]]}
    words = sample(tmp_path, x=np.ones(2), word=np.array(["a", "b"]))
    both = plain_payloads.instances(words, to="/x", headers={})
    assert json.loads(both.requests[1]) == {"instances": [{"x": 1.0, "word": "b"}]}


def test_instances_of_several_items_share_a_request(tmp_path: pathlib.Path) -> None:
    """As many as a client puts into one; the last is filled up from the first."""
    path = sample(tmp_path, x=np.arange(3.0), labels=np.array([7, 8, 9]))
    found = plain_payloads.instances(path, to="/x", headers={}, client_batch=2)
    assert [json.loads(body)["instances"] for body in found.requests] == [[0, 1], [2, 0]]
    assert found.labels is not None
    assert found.labels.tolist() == [[7, 8], [9, 7]]
    assert found.client_batch == 2


def test_a_file_is_a_body_and_a_line_is_one_of_several(tmp_path: pathlib.Path) -> None:
    """The content type is told by the ending, unless the headers say it."""
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"a": 1}\n\n{"a": 2}\n')
    found = plain_payloads.from_file(lines, to="/x", method="POST", headers={})
    assert found.requests == (b'{"a": 1}', b'{"a": 2}')
    assert found.headers == {"Content-Type": "application/json"}
    given = {"content-type": "text/plain"}
    assert plain_payloads.from_file(lines, to="/x", method="PUT", headers=given).headers == given


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": np.ones(2), "b": np.ones(2)}, "2 inputs \\(a, b\\), but a body of bytes has one"),
        ({"a": np.array(["x"])}, "expected numbers"),
        ({"a": np.ones(2), "b": np.ones(3)}, "the same number of items"),
        ({"a": np.ones(0)}, "at least 1"),
        ({"a": np.ones(2), "labels": np.array(7)}, "'labels': 0 items, expected 2"),
        ({"a": np.ones(2), "labels": np.ones(1)}, "'labels': 1 items, expected 2"),
        ({"a": np.ones(2), "labels": np.ones(3)}, "'labels': 3 items, expected 2"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(
    tmp_path: pathlib.Path, arrays: dict[str, np.ndarray], said: str
) -> None:
    """With the file and what was expected."""
    path = sample(tmp_path, **arrays)
    with pytest.raises(UsageError, match=said):
        plain_payloads.tensors(path, to="/x", method="POST", headers={}, response="")


def test_a_file_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    """Missing, or no arrays."""
    with pytest.raises(UsageError, match="no such file"):
        plain_payloads.instances(tmp_path / "no.npz", to="/x", headers={})
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no")
    with pytest.raises(UsageError, match="is not an npz"):
        plain_payloads.instances(broken, to="/x", headers={})
    with pytest.raises(UsageError, match="No such file"):
        plain_payloads.from_file(tmp_path / "no.json", to="/x", method="POST", headers={})
