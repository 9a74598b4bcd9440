"""A model that multiplies by its version; some numbers make it raise, or take its time."""

import pathlib
import time

import numpy as np


class Model:
    inputs = ({"name": "x", "datatype": "FP32", "shape": [-1, 2]},)
    outputs = (
        {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "place", "datatype": "INT64", "shape": [-1]},
    )

    def __init__(self, path):
        self.factor = int(pathlib.Path(path).parent.name)

    def predict_batch(self, inputs):
        x = inputs["x"]
        if (x == -1).any():
            raise ValueError("minus one is not liked")
        if (x < -1).any():
            time.sleep(-float(x.min()) / 10)
        return {"y": x * np.float32(self.factor), "place": np.argmax(x, axis=1)}
