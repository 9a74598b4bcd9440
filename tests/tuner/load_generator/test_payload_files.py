"""Payloads from files, and what is said about files that do not fit."""

import json
import types

import numpy as np
import pytest

from serving.replica.samples import samples_of
from serving.values import Signature, TensorSpec
from tuner.errors import UsageError
from tuner.load_generator import oip_body, payload_files

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="image", datatype="UINT8", shape=(-1, 2, 2)),
        TensorSpec(name="scale", datatype="FP32", shape=(-1,)),
    ),
    outputs=(),
)
WORDS = Signature(inputs=(TensorSpec(name="text", datatype="BYTES", shape=(-1, -1)),), outputs=())
IMAGES = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
SCALES = np.array([0.5, 1.5, 2.5], dtype=np.float32)


def tensors(made):
    """Raw bytes after the header, of each request."""
    length = int(made.headers["Inference-Header-Content-Length"])
    return [body[length:] for body in made.requests]


def expected_tensors(count=3):
    return [IMAGES[row].tobytes() + SCALES[row].tobytes() for row in range(count)]


@pytest.fixture
def npz(tmp_path):
    """Writes arrays to a file."""

    def write(**arrays):
        path = tmp_path / "payload.npz"
        np.savez(path, **arrays)
        return path

    return write


@pytest.fixture
def lines(tmp_path):
    """Writes lines to a file, objects as JSON."""

    def write(*items):
        path = tmp_path / "payload.jsonl"
        texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return write


def test_an_npz_gives_one_request_an_item(npz):
    """In the order of the file and of the signature's inputs; other arrays are left alone."""
    path = npz(scale=SCALES, image=IMAGES, labels=np.array([7, 8, 9]), notes=np.array(["a"]))
    made = payload_files.from_file(path, SIGNATURE, model="m")
    assert tensors(made) == expected_tensors()
    assert made.labels.tolist() == [[7], [8], [9]]
    assert not made.is_synthetic
    assert made.description == "payload.npz: 3 items"
    assert made.path == "/v2/models/m/infer"


def test_a_long_file_is_taken_in_part_and_that_is_said(npz):
    """The first items, with their labels."""
    path = npz(scale=SCALES, image=IMAGES, labels=np.array([7, 8, 9]))
    made = payload_files.from_npz(path, SIGNATURE, model="m", most=2)
    assert tensors(made) == expected_tensors(2)
    assert made.labels.tolist() == [[7], [8]]
    assert made.description == "payload.npz: 2 items of 3"


def test_a_client_batch_puts_several_items_into_each_request(npz):
    """In order, with their labels; the last request is filled up from the first items on."""
    path = npz(scale=SCALES, image=IMAGES, labels=np.array([7, 8, 9]))
    made = payload_files.from_file(path, SIGNATURE, model="m", client_batch=2)
    pairs = ([0, 1], [2, 0])
    assert tensors(made) == [IMAGES[rows].tobytes() + SCALES[rows].tobytes() for rows in pairs]
    assert made.labels.tolist() == [[7, 8], [9, 7]]
    assert made.client_batch == 2
    assert made.description == "payload.npz: 3 items, 2 in each request"


def test_a_client_batch_larger_than_the_file_repeats_its_items(npz):
    """One request of all items and the first again: sizes are what was asked for."""
    path = npz(scale=SCALES, image=IMAGES)
    made = payload_files.from_file(path, SIGNATURE, model="m", client_batch=5)
    rows = [0, 1, 2, 0, 1]
    assert tensors(made) == [IMAGES[rows].tobytes() + SCALES[rows].tobytes()]


def test_items_of_unequal_shape_share_no_request(lines):
    """The replica pads nothing, so neither does the client: the error says what to do."""
    signature = Signature(
        inputs=(TensorSpec(name="x", datatype="INT64", shape=(-1, -1)),), outputs=()
    )
    path = lines({"x": [1, 2]}, {"x": [1, 2, 3]})
    assert len(payload_files.from_file(path, signature, model="m").requests) == 2
    with pytest.raises(
        UsageError, match=r"--client-batch 2: .*'x' \(\[1, 2\] and \[1, 3\]\).*pad them"
    ):
        payload_files.from_file(path, signature, model="m", client_batch=2)


def test_arrays_are_converted_where_only_precision_is_lost(npz):
    """float64 becomes FP32 and int64 becomes UINT8 when every value fits."""
    path = npz(scale=SCALES.astype(np.float64), image=IMAGES.astype(np.int64))
    assert tensors(payload_files.from_npz(path, SIGNATURE, model="m")) == expected_tensors()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"scale": SCALES, "imge": IMAGES},
            r"no array 'image', did you mean 'imge'\? .*UINT8 \[1, 2, 2\]",
        ),
        (
            {"scale": SCALES[:2], "image": IMAGES},
            "'scale': 2 items, expected as many as in 'image'",
        ),
        ({"scale": SCALES[:0], "image": IMAGES[:0]}, "0 items"),
        ({"scale": np.float32(1), "image": IMAGES}, "'scale': 0 items"),
        (
            {"scale": SCALES, "image": IMAGES[:, :1]},
            r"'image': shape \[3, 1, 2\], expected \[1, 2, 2\]",
        ),
        ({"scale": SCALES, "image": IMAGES[:, 0]}, r"'image': shape \[3, 2\]"),
        ({"scale": SCALES, "image": IMAGES.astype(float)}, "'image': float64, expected UINT8"),
        ({"scale": SCALES, "image": IMAGES.astype(int) + 250}, "'image': 256 does not fit UINT8"),
        ({"scale": np.full(3, 1e300), "image": IMAGES}, "'scale': 1e.300 does not fit FP32"),
        ({"scale": SCALES, "image": IMAGES, "labels": [1]}, "'labels': 1 items"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(npz, arrays, text):
    """With what was found and what was expected."""
    path = npz(**arrays)
    with pytest.raises(UsageError, match=text) as caught:
        payload_files.from_npz(path, SIGNATURE, model="m")
    assert str(path) in str(caught.value)


def test_files_that_are_no_npz_are_refused(tmp_path):
    """Missing, of another kind, with pickled objects, or of an unknown ending."""
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, IMAGES)
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, image=np.array([{}, 1], dtype=object), scale=SCALES)
    text = tmp_path / "text.npz"
    text.write_text("hello")
    for path, match in [
        (tmp_path / "none.npz", "no such file"),
        (single, "is not an npz"),
        (pickled, "cannot be read as npz"),
        (text, "is not an npz"),
        (tmp_path / "photo.png", r"expected .npz or .jsonl"),
    ]:
        with pytest.raises(UsageError, match=match):
            payload_files.from_file(path, SIGNATURE, model="m")


def test_lines_of_both_forms_give_the_same_requests(lines):
    """The protocol's own form, flat or nested, and a mapping with or without a batch dimension."""
    image, scale = IMAGES[0].tolist(), float(SCALES[0])
    path = lines(
        {
            "inputs": [
                {"name": "scale", "shape": [1], "datatype": "FP32", "data": [scale]},
                {
                    "name": "image",
                    "shape": [1, 2, 2],
                    "datatype": "UINT8",
                    "data": IMAGES[0].ravel().tolist(),
                },
            ]
        },
        "",
        {"inputs": [{"name": "image", "data": [image]}, {"name": "scale", "data": [scale]}]},
        {"image": image, "scale": scale},
        {"image": [image], "scale": [scale]},
    )
    made = payload_files.from_file(path, SIGNATURE, model="m")
    assert tensors(made) == expected_tensors(1) * 4
    assert made.description == "payload.jsonl: 4 items"


def test_lines_of_texts_become_bytes(lines):
    """Strings are sent as UTF-8, and requests may differ in length."""
    made = payload_files.from_file(lines({"text": ["a", "é"]}, {"text": ["b"]}), WORDS, model="m")
    spec = WORDS.inputs[0]
    expected = [
        oip_body.tensor_bytes(oip_body.RequestInput(spec, np.array([words], dtype=object)))
        for words in (["a", "é"], ["b"])
    ]
    assert tensors(made) == expected


def test_arrays_of_texts_become_bytes(npz):
    """NumPy's fixed-width texts lose their padding."""
    made = payload_files.from_npz(npz(text=np.array([["a", "long"]])), WORDS, model="m")
    assert tensors(made) == [b"\x01\0\0\0a\x04\0\0\0long"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: list, expected an object with image UINT8"),
        ({"image": [[1, 2], [3, 4]]}, "line 2: input 'scale' is missing"),
        ({"imag": 1, "scale": 1}, r"line 2: unknown input 'imag', did you mean 'image'\?"),
        ({"image": [[1, 2], [3]], "scale": 1}, "line 2, input 'image': lists of unequal length"),
        ({"image": [[1, 2], [3, 4.5]], "scale": 1}, "'image': float64, expected UINT8"),
        ({"image": [[1, 2], [3, 256]], "scale": 1}, "'image': 256 does not fit"),
        ({"image": [[1, 2], [3, -1]], "scale": 1}, "'image': -1 does not fit"),
        ({"image": "abc", "scale": 1}, "'image': shape"),
        ({"image": [["a", "b"], ["c", "d"]], "scale": 1}, "'image': <U1, expected UINT8"),
        ({"image": IMAGES.tolist(), "scale": 1}, "3 items, expected one item per request"),
        ({"inputs": [{"name": "image"}]}, "line 2: an input without name or data"),
        ({"inputs": 3}, "line 2: an input without name or data"),
        (
            {
                "inputs": [
                    {"name": "image", "shape": [7], "data": [1]},
                    {"name": "scale", "data": [1]},
                ]
            },
            "'image': cannot reshape",
        ),
    ],
)
def test_lines_that_do_not_fit_are_refused_by_number(lines, line, text):
    """With the input, what was found and what was expected."""
    path = lines({"image": [[1, 2], [3, 4]], "scale": 1}, line)
    with pytest.raises(UsageError, match=text):
        payload_files.from_json_lines(path, SIGNATURE, model="m")


def test_lines_of_many_bytes_are_taken_in_part(lines, monkeypatch):
    """As many as fit, blank ones counted too; one always does."""
    line = json.dumps({"image": [[1, 2], [3, 4]], "scale": 1})
    for most, taken in ((3 * len(line) + 3, 3), (len(line) + 1, 1)):
        monkeypatch.setattr(payload_files, "MAX_BYTES", most)
        made = payload_files.from_json_lines(lines(*[line] * 5), SIGNATURE, model="m")
        assert len(made.requests) == taken
    monkeypatch.setattr(payload_files, "MAX_BYTES", 2 * len(line))
    blank = [""] * len(line)
    assert (
        len(payload_files.from_json_lines(lines(line, *blank, line), SIGNATURE, model="m").requests)
        == 1
    )


def test_files_without_requests_are_refused(lines, tmp_path):
    """An empty file and one that is not there."""
    with pytest.raises(UsageError, match="no request to send"):
        payload_files.from_json_lines(lines(""), SIGNATURE, model="m")
    with pytest.raises(UsageError, match="cannot be read"):
        payload_files.from_json_lines(tmp_path / "none.jsonl", SIGNATURE, model="m")


def test_something_else_than_strings_for_texts_is_refused(lines):
    """Numbers and null are no BYTES."""
    for data in ([1, 2], ["a", None]):
        with pytest.raises(UsageError, match="expected strings"):
            payload_files.from_json_lines(lines({"text": data}), WORDS, model="m")


@pytest.mark.parametrize(
    ("signature", "arrays", "requests"),
    [
        (
            Signature(
                inputs=(
                    TensorSpec(name="input", datatype="FP32", shape=(-1, -1)),
                    TensorSpec(name="state", datatype="FP32", shape=(2, -1, 8)),
                    TensorSpec(name="rate", datatype="INT64", shape=()),
                ),
                outputs=(),
                unbatched="its state has a first dimension that is fixed",
            ),
            {
                "input": np.ones((1, 16), "f4"),
                "state": np.ones((2, 1, 8), "f4"),
                "rate": np.int64(16000),
            },
            1,
        ),
        (
            Signature(
                inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
                outputs=(),
                unbatched="answers depend on the batch",
            ),
            {"x": np.arange(40, dtype="f4").reshape(10, 4)},
            10,
        ),
        (
            Signature(
                inputs=(
                    TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),
                    TensorSpec(name="state", datatype="FP32", shape=(2, -1, 3), item_axis=1),
                ),
                outputs=(),
                unbatched="",
            ),
            {"x": np.ones((5, 4), "f4"), "state": np.arange(30, dtype="f4").reshape(2, 5, 3)},
            5,
        ),
    ],
    ids=["plain inputs", "rows", "another item axis"],
)
def test_a_file_is_to_the_server_what_it_is_to_the_tuner(npz, signature, arrays, requests):
    """Both find the same samples in it: what the tuner sends is what a model is warmed up with."""
    path = npz(**arrays)
    made = payload_files.from_npz(path, signature, model="m")
    warmed = samples_of(types.SimpleNamespace(signature=signature), path).requests(requests)
    assert len(made.requests) == requests
    assert tensors(made) == [
        b"".join(request[spec.name].tobytes() for spec in signature.inputs) for request in warmed
    ]
