"""Kind echo gives back the very array."""

from __future__ import annotations

import numpy as np

from serving import models


def test_the_answer_is_the_input_itself_not_a_copy():
    model = models.load("echo", None, threads=1)
    data = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert model.predict_batch({"data": data})["data"] is data


def test_the_signature_is_rows_of_bytes_in_and_out():
    signature = models.load("echo", None, threads=1).signature
    assert signature.inputs == signature.outputs
    assert signature.inputs[0].as_json() == {"name": "data", "datatype": "UINT8", "shape": [-1, -1]}
