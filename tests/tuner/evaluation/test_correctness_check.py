"""The class or text that an answer names, read from binary tensors."""

from __future__ import annotations

import http.server
import json
import threading

import numpy as np
import pytest

from tuner.evaluation.correctness_check import check_responses, read, read_oip
from tuner.load_generator.payloads import Payloads


def answer(*outputs: tuple[str, str, np.ndarray]) -> tuple[bytes, int]:
    """An answer of the protocol in binary form, and the length of its header."""
    header = json.dumps(
        {
            "outputs": [
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, datatype, array in outputs
            ]
        }
    ).encode()
    return header + b"".join(array.tobytes() for _, _, array in outputs), len(header)


SCORES = np.array([[0.1, 0.7, 0.2]], dtype=np.float32)
LABEL = np.array([2], dtype=np.int64)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([("scores", "FP32", SCORES)], 1),
        ([("label", "INT64", LABEL), ("scores", "FP32", SCORES)], 2),
        ([("value", "FP32", SCORES[:, :1])], None),
    ],
    ids=["largest score", "the label before scores", "a single number is no class"],
)
def test_the_class_of_an_answer(
    outputs: list[tuple[str, str, np.ndarray]], expected: int | None
) -> None:
    """A whole number is the class, of several scores the largest."""
    found = read_oip(*answer(*outputs))
    assert (None if found is None else found.tolist()) == (None if expected is None else [expected])


def test_json_data_is_read_too() -> None:
    """A server that ignores the wish for binary outputs is understood."""
    text = json.dumps({"outputs": [{"name": "s", "datatype": "FP32", "data": [0.9, 0.1]}]}).encode()
    found = read_oip(text, len(text))
    assert found is not None
    assert found.tolist() == [0]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([("scores", "FP32", np.array([[0.1, 0.9], [0.8, 0.2]], dtype=np.float32))], [1, 0]),
        ([("label", "INT64", np.array([4, 7], dtype=np.int64))], [4, 7]),
        ([("value", "FP32", np.array([[0.1], [0.2]], dtype=np.float32))], None),
        ([("odd", "FP32", np.array([0.1, 0.2, 0.3], dtype=np.float32))], None),
    ],
    ids=["scores", "labels", "a single number is no class", "not so many items"],
)
def test_the_classes_of_several_items(
    outputs: list[tuple[str, str, np.ndarray]], expected: list[int] | None
) -> None:
    """An answer to a request of two items names a class for each."""
    found = read_oip(*answer(*outputs), items=2)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("texts", [["zweiundvierzig"], ["", "eins", "zwölf"]])
def test_texts_are_the_answers_themselves(texts: list[str], is_binary: bool) -> None:
    """In binary form, and where the server answers in JSON."""
    output: dict[str, object] = {"name": "translation", "datatype": "BYTES", "shape": [len(texts)]}
    data = b""
    if is_binary:
        encoded = [text.encode() for text in texts]
        data = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
        output["parameters"] = {"binary_data_size": len(data)}
    else:
        output["data"] = texts
    header = json.dumps({"outputs": [output]}).encode()
    found = read_oip(header + data, len(header), items=len(texts))
    assert found is not None
    assert found.tolist() == texts
    assert read_oip(header + data, len(header), items=7) is None


@pytest.mark.parametrize(
    ("form", "data", "items", "expected"),
    [
        ("tensorflow-serving", b'{"predictions": [[0.1, 0.7, 0.2]]}', 1, [1]),
        ("tensorflow-serving", b'{"predictions": [[0.1, 0.7], [0.8, 0.2]]}', 2, [1, 0]),
        ("tensorflow-serving", b'{"predictions": [{"label": 2, "scores": [0.9, 0.1]}]}', 1, [2]),
        ("tensorflow-serving", b'{"predictions": [0.5]}', 1, None),
        ("FP32", SCORES.tobytes(), 1, [1]),
        ("INT64", LABEL.tobytes(), 1, [2]),
    ],
)
def test_other_forms_of_answers(
    form: str, data: bytes, items: int, expected: list[int] | None
) -> None:
    """TensorFlow Serving's JSON, and numbers without anything around them."""
    found = read(form, data, len(data), items=items)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("form", ["open-inference", "tensorflow-serving"])
@pytest.mark.parametrize(
    "body",
    ["{", "[]", "7", "{}", '{"predictions": []}', '{"predictions": 7, "outputs": 7}',
     '{"predictions": [{}], "outputs": [{"parameters": null}]}'],
)  # fmt: skip
def test_an_answer_in_another_form_is_a_note(form: str, body: str) -> None:
    """Whatever a server sends, the study goes on without the check."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments):
            """Keep the output of tests clean."""

    sent = Payloads(
        requests=(b"x",), headers={}, path="/", description="x", labels=LABEL[:, None], answer=form
    )
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        note = check_responses(server.server_address, sent)
    assert note is None or note.startswith("responses could not be checked: ")
