"""Requests of several callers in one call of a model."""

import numpy as np
import pytest

from serving.errors import InferenceFailed
from serving.models.batching import BatchRunner
from serving.values import Signature, TensorSpec

FREE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
)
FIXED = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(1, 2)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(1,)),),
)


class Sums:
    """The sum of each row; rows of -1 raise, and every call is remembered."""

    def __init__(self, signature=FREE):
        self.signature = signature
        self.calls = []

    def predict_batch(self, inputs):
        self.calls.append(inputs["x"].shape)
        if (inputs["x"] == -1).any():
            raise ValueError("no -1")
        return {"y": inputs["x"].sum(1), "more": "left out"}


class Dressed(Sums):
    """With something before and after."""

    def preprocess(self, inputs):
        return {"x": inputs["x"] * 2}

    def postprocess(self, outputs):
        return {"y": outputs["y"] + 1}


class Short(Sums):
    """An answer too few."""

    def predict_batch(self, inputs):
        return {"y": inputs["x"].sum(1)[1:]}


def rows(*values):
    return {"x": np.array(values, np.float32)}


def test_equal_requests_share_a_call():
    """Each gets the answers of its own items, in order."""
    model = Sums()
    answers = BatchRunner(model).run([rows([1, 2]), rows([3, 4], [5, 6]), rows([7, 8])])
    assert [answer["y"].tolist() for answer in answers] == [[3], [7, 11], [15]]
    assert model.calls == [(4, 2)]
    assert all(answer.keys() == {"y"} for answer in answers)


def test_requests_that_differ_run_apart():
    """By shape behind the item axis, and by datatype; the order stays."""
    model = Sums()
    other = {"x": np.array([[1, 1]], np.float64)}
    answers = BatchRunner(model).run([rows([1, 2]), rows([1, 2, 3]), rows([4, 5]), other])
    assert [answer["y"].tolist() for answer in answers] == [[3], [6], [9], [2]]
    assert sorted(model.calls) == [(1, 2), (1, 3), (2, 2)]


def test_a_model_of_fixed_size_takes_one_request_at_a_time():
    """Nothing is put together along an axis that is no item axis."""
    model = Sums(FIXED)
    answers = BatchRunner(model).run([rows([1, 2]), rows([3, 4])])
    assert [answer["y"].tolist() for answer in answers] == [[3], [7]]
    assert model.calls == [(1, 2), (1, 2)]


def test_what_the_model_raises_is_the_answer_of_those_that_ran_together():
    """The others have theirs."""
    answers = BatchRunner(Sums()).run([rows([-1, 0]), rows([1, 1]), rows([1, 2, 3])])
    assert [type(answer) for answer in answers] == [ValueError, ValueError, dict]


def test_before_and_after_are_part_of_the_call():
    """As in a replica."""
    assert BatchRunner(Dressed()).run([rows([1, 2])])[0]["y"].tolist() == [7]


@pytest.mark.parametrize("count", [1, 2])
def test_a_missing_output_is_the_models_fault(count):
    """Told with the names that were expected."""
    model = Sums(Signature(inputs=FREE.inputs, outputs=FIXED.inputs))
    answers = BatchRunner(model).run([rows([1, 2])] * count)
    assert all(isinstance(answer, InferenceFailed) for answer in answers)
    assert "its outputs x" in str(answers[0])


def test_too_few_answers_are_the_models_fault():
    """Nobody gets the answer of another."""
    answers = BatchRunner(Short()).run([rows([1, 2]), rows([3, 4])])
    assert all("shape [1] for 2 items" in str(answer) for answer in answers)
