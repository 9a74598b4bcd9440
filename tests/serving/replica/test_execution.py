"""A batch through a model: what the model does with its arrays between two calls touches no answer."""

import numpy as np
import pytest

from serving.replica import wire
from serving.replica.execution import Execution
from serving.values import Signature, Tensor, TensorSpec


class Reusing:
    """Row sums in one array for all calls; raises for batches of more rows than it can."""

    signature = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
    )

    def __init__(self, most):
        self._sums = np.zeros(8, np.float32)
        self._most = most

    def predict_batch(self, inputs):
        rows = inputs["x"]
        if len(rows) > self._most:
            raise ValueError("too many rows")
        np.sum(rows, axis=1, out=self._sums[: len(rows)])
        return {"y": self._sums[: len(rows)]}


def entry(*row):
    array = np.array([row], np.float32)
    tensor = Tensor("x", "FP32", array.shape, array.tobytes())
    frame = memoryview(wire.encode_descriptor([tensor]) + tensor.data)
    return (int(wire.Encoding.TENSORS), 0, 0, frame)


@pytest.mark.parametrize(
    ("most", "rows"),
    [(8, [(1, 1), (1, 1, 1), (4, 4)]), (1, [(1, 1), (2, 1), (4, 4)]), (8, [(1, 1), (2, 1)])],
)
def test_a_model_may_return_the_same_array_again(most, rows):
    """Groups of different shapes, and halves of a batch that failed, are calls of their own."""
    message = wire.InferMessage(0, 0, 0, 0, [entry(*row) for row in rows])
    outcomes, _ = Execution(Reusing(most)).run(message, 0)
    answers = [np.frombuffer(frame[-1], np.float32).tolist() for _, _, frame in outcomes]
    assert answers == [[sum(row)] for row in rows]
