"""A model of every kind of datatype: makes each of its inputs an output of the same name."""


class Model:
    inputs = (
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "number", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "count", "datatype": "INT64", "shape": [-1]},
        {"name": "pixel", "datatype": "UINT8", "shape": [-1, -1]},
    )
    outputs = inputs

    def predict_batch(self, inputs):
        return {
            "text": [text.upper() for text in inputs["text"]],
            "number": inputs["number"] * 2,
            "count": inputs["count"] - 1,
            "pixel": 255 - inputs["pixel"],
        }
