"""A model to classify and to regress with."""


class Model:
    inputs = ({"name": "a", "datatype": "FP32", "shape": [-1, 2]},)
    outputs = (
        {"name": "scores", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "outputs", "datatype": "FP32", "shape": [-1]},
    )

    def predict_batch(self, inputs):
        return {"scores": inputs["a"], "outputs": inputs["a"].sum(axis=1)}
