"""Outputs become answers; answers have a loss."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from serving.errors import InferenceFailed, InvalidRequest, InvalidSettings
from serving.selection import model_output
from serving.selection.model_output import Label, ModelOutput, Number, Scores, Task, TrueLabel
from serving.values import Tensor

NUMBER = Task(kind="number", scale=10.0)


def tensor(array: Any, datatype: str, name: str = "out") -> Tensor:
    values = np.asarray(array, dtype=model_output.NUMPY[datatype])
    return Tensor(name, datatype, values.shape, values.tobytes())


def strings(*texts: str) -> Tensor:
    data = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in texts)
    return Tensor("out", "BYTES", (len(texts),), data)


READ = [
    ("probabilities stay", Task(), tensor([[0.25, 0.75]], "FP64"), [Scores(("0", "1"), (0.25, 0.75))]),
    ("scores are named", Task(labels=("cat", "dog")), tensor([[1.0, 0.0]], "FP32"),
     [Scores(("cat", "dog"), (1.0, 0.0))]),
    ("logits become probabilities", Task(), tensor([[1000.0, 1000.0]], "FP64"),
     [Scores(("0", "1"), (0.5, 0.5))]),
    ("whole numbers are labels", Task(), tensor([[3], [4]], "INT64"), [Label("3"), Label("4")]),
    ("floats that are whole, too", Task(), tensor([3.0], "FP32"), [Label("3")]),
    ("strings are labels", Task(), strings("cat", "Hündin"), [Label("cat"), Label("Hündin")]),
    ("numbers", NUMBER, tensor([[1.5], [2.0]], "FP32"), [Number(1.5), Number(2.0)]),
    ("whole numbers", NUMBER, tensor([7], "INT32"), [Number(7.0)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "given", "expected"), [row[1:] for row in READ], ids=[r[0] for r in READ]
)
def test_an_output_is_read_as_answers(
    task: Task, given: Tensor, expected: list[ModelOutput]
) -> None:
    """One answer for each item."""
    assert model_output.model_outputs(task, [given]) == expected


def test_the_output_of_the_task_is_read() -> None:
    """By its name, or else the first."""
    outputs = [tensor([1], "INT64", "first"), tensor([2], "INT64", "second")]
    assert model_output.model_outputs(Task(), outputs) == [Label("1")]
    assert model_output.model_outputs(Task(output="second"), outputs) == [Label("2")]


REFUSED = [
    (Task(), [], "no output"),
    (Task(output="x"), [tensor([1], "INT64")], "no output 'x' .outputs: out."),
    (Task(), [tensor([0.5], "FP32")], "score of one class alone"),
    (Task(), [tensor([[math.nan, 0.5]], "FP32")], "not finite"),
    (
        Task(labels=("a",)),
        [tensor([[0.5, 0.5]], "FP32")],
        "2 scores per item, but the task names 1",
    ),
    (NUMBER, [tensor([[1.0, 2.0]], "FP32")], "holds 2 numbers per item"),
    (NUMBER, [strings("3")], "holds strings"),
    (Task(), [tensor(3, "INT64")], "no axis of items"),
]


@pytest.mark.parametrize(("task", "outputs", "text"), REFUSED)
def test_an_output_that_cannot_be_voted_on_is_a_failed_prediction(
    task: Task, outputs: list[Tensor], text: str
) -> None:
    """The model has broken its contract; the text says how."""
    with pytest.raises(InferenceFailed, match=text):
        model_output.model_outputs(task, outputs)


LOSSES = [
    (Task(), Label("a"), "a", 0.0),
    (Task(), Label("a"), "b", 1.0),
    (Task(), Scores(("a", "b"), (0.4, 0.6)), "b", 0.0),
    (Task(), Scores(("a", "b"), (0.5, 0.5)), "a", 0.0),
    (Task(), None, "a", 1.0),
    (NUMBER, Number(3.0), 8.0, 0.25),
    (NUMBER, Number(3.0), 300.0, 1.0),
    (Task(kind="number", scale=10.0, loss="absolute"), Number(3.0), 8.0, 0.5),
    (NUMBER, Number(1e300), -1e300, 1.0),
]


@pytest.mark.parametrize(("task", "answer", "right", "expected"), LOSSES)
def test_a_loss_lies_between_right_and_as_wrong_as_can_be(
    task: Task, answer: ModelOutput | None, right: TrueLabel, expected: float
) -> None:
    """0 or 1 for classes; numbers by their difference over the scale; nothing is wrong."""
    assert model_output.loss(task, answer, right) == expected


def test_one_class_has_one_spelling() -> None:
    """3, 3.0 and "3" are the same label; a list is none."""
    assert {model_output.true_label(Task(), value) for value in (3, 3.0, "3")} == {"3"}
    for value in ([3], 3.5, None):
        with pytest.raises(InvalidRequest, match="expected a string or a whole number"):
            model_output.true_label(Task(), value)


def test_a_number_is_checked() -> None:
    """Feedback for a number is a finite number."""
    assert model_output.true_label(NUMBER, 3) == 3.0
    for value in ("3", True, math.inf, None, 10**400):
        with pytest.raises(InvalidRequest, match="is not a finite number"):
            model_output.true_label(NUMBER, value)


def test_a_task_survives_json_and_is_checked() -> None:
    """Plain data and back; wrong values and unknown keys are refused."""
    task = Task(kind="number", scale=3.0, tolerance=0.5, labels=("a", "b"), output="y")
    assert Task.from_json(dataclasses.asdict(task)) == task
    wrong: list[dict[str, Any]] = [
        {"kind": "rank"}, {"scale": 0}, {"tolerance": -1}, {"loss": "log"}, {"labels": ["a", "a"]},
        {"colour": 1},
    ]  # fmt: skip
    for data in wrong:
        with pytest.raises(InvalidSettings, match=f"task.{next(iter(data))}"):
            Task.from_json(data)


def test_an_index_is_the_class_of_that_name() -> None:
    """Clipper's clients can only send numbers, and some models answer with the index of their class."""
    task = Task(labels=("bag", "shoe"))
    assert [model_output.true_label(task, value) for value in (1, 1.0, "shoe", "1", 2)] == [
        "shoe", "shoe", "shoe", "1", "2",
    ]  # fmt: skip
    assert model_output.model_outputs(task, [tensor([[0], [1]], "INT64")]) == [
        Label("bag"),
        Label("shoe"),
    ]
    assert model_output.true_label(Task(), 1) == "1"
