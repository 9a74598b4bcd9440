"""What models say in a form that can be voted on, and how wrong it was.

In: a model's output tensors, one item along the first axis; a truth from feedback. Out: an answer
per item (a label, class probabilities, or a number), and a loss in [0, 1]. It must not know who
said it, nor what is done with it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest, InvalidSettings, PredictionFailed
from serving.json_tensors import NUMPY
from serving.values import Tensor

Kind = Literal["classes", "number"]
Loss = Literal["squared", "absolute"]

Truth = str | float
"""What was right: a class label, or a number."""

MISSING_LOSS = 1.0
"""Loss of a model that was asked and did not answer in time: to the user it was as bad as wrong."""

_SUM_TOLERANCE = 1e-3
"""How far probabilities in FP16 may be from a sum of 1."""


class Label(NamedTuple):
    """A class."""

    label: str


class Scores(NamedTuple):
    """A probability for each class, in the order of the labels."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class Number(NamedTuple):
    """A number."""

    value: float


Answer = Label | Scores | Number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an application's models predict, and what counts as wrong."""

    kind: Kind = "classes"
    output: str | None = None
    """Name of the output tensor that is read; None: the only one, or the first."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the scores; empty: their indices. A class told by its index, by
    a model or by feedback, is the one of that name."""
    scale: float = 1.0
    """Difference of numbers that is as wrong as can be, a loss of 1; in the number's own unit."""
    tolerance: float | None = None
    """Numbers that differ by no more agree; None: a tenth of `scale`."""
    loss: Loss = "squared"
    """How the loss of a number grows up to `scale`."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidSettings(f"task.kind = {self.kind!r}, expected classes or number")
        if self.loss not in get_args(Loss):
            raise InvalidSettings(f"task.loss = {self.loss!r}, expected squared or absolute")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidSettings(f"task.scale = {self.scale!r}, expected a number above 0")
        if self.tolerance is not None and not (self.tolerance >= 0):
            raise InvalidSettings(
                f"task.tolerance = {self.tolerance!r}, expected a number of 0 or more, or none"
            )
        if len(set(self.labels)) != len(self.labels):
            raise InvalidSettings(f"task.labels = {self.labels!r}, expected no label twice")

    @property
    def agreeing(self) -> float:
        """The largest difference of numbers that agree."""
        return self.scale / 10 if self.tolerance is None else self.tolerance

    def as_json(self) -> dict[str, Any]:
        """Plain data, all fields."""
        return {**dataclasses.asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Inverse of `as_json`; what is absent has its default.

        Raises:
            InvalidSettings: an unknown key or a wrong value.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in data:
            if key not in names:
                raise InvalidSettings(
                    f"task.{key} is not known, expected one of {', '.join(names)}"
                )
        labels = data.get("labels", ())
        if isinstance(labels, str) or not isinstance(labels, Sequence):
            raise InvalidSettings(f"task.labels = {labels!r}, expected a list of names")
        if not all(isinstance(label, str) for label in labels):
            raise InvalidSettings(f"task.labels = {labels!r}, expected names")
        for key in ("scale", "tolerance"):
            value = data.get(key, 1.0)
            if value is None and key == "tolerance":
                continue
            if not is_number(value):
                raise InvalidSettings(f"task.{key} = {value!r:.100}, expected a number")
        output = data.get("output")
        if output is not None and not isinstance(output, str):
            raise InvalidSettings(f"task.output = {output!r}, expected a name")
        return cls(**{**data, "labels": tuple(labels)})


CLASSES = Task()
"""What is predicted where nothing else is said: classes, told by an index or a label."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a number that a float can hold; of whole numbers JSON has larger ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def label_text(value: object) -> str:
    """The one spelling of a label: 3, 3.0 and "3" are the same class.

    Raises:
        ValueError: neither a string nor a whole number.
    """
    match value:
        case str():
            return value
        case bytes():
            return value.decode("utf-8")
        case bool() | int():
            return str(int(value))
        case float() if value.is_integer():
            return str(int(value))
    raise ValueError(f"{value!r} is not a label, expected a string or a whole number")


def class_of(task: Task, value: object) -> str:
    """The class that a value tells: a label, or the index of one where the task names its classes.

    Raises:
        ValueError: neither a string nor a whole number.
    """
    label = label_text(value)
    if task.labels and not isinstance(value, str | bytes) and 0 <= int(label) < len(task.labels):
        return task.labels[int(label)]
    return label


def truth(task: Task, value: object) -> Truth:
    """What feedback says, checked.

    Raises:
        InvalidRequest: it is not a label, or not a finite number.
    """
    if task.kind == "classes":
        try:
            return class_of(task, value)
        except ValueError as error:
            raise InvalidRequest(f"label: {error}") from None
    if not is_number(value) or not math.isfinite(value):
        raise InvalidRequest(f"label: {value!r:.100} is not a finite number")
    return float(value)


def answers(task: Task, outputs: Sequence[Tensor]) -> list[Answer]:
    """One answer for each item of a model's outputs.

    Classes: floats (n, k) are scores of k classes, k above 1; strings or whole numbers (n,) or
    (n, 1) are labels. Scores that are no probabilities are taken for logits. Number: (n,) or
    (n, 1).

    Raises:
        PredictionFailed: the outputs cannot be read so, or are not finite.
    """
    tensor = _chosen(task, outputs)
    if tensor.datatype == "BYTES":
        if task.kind == "number":
            raise PredictionFailed(f"output {tensor.name!r} holds strings, expected numbers")
        return [Label(text) for text in _strings(tensor)]
    array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)
    columns = math.prod(array.shape[1:])
    if not np.isfinite(array).all():
        raise PredictionFailed(f"output {tensor.name!r} holds values that are not finite")
    if task.kind == "number":
        if columns != 1:
            raise PredictionFailed(
                f"output {tensor.name!r} of shape {tensor.shape} holds {columns} numbers an item, expected 1"
            )
        return [Number(float(value)) for value in array.ravel()]
    if columns == 1:
        try:
            return [Label(class_of(task, value)) for value in array.ravel().tolist()]
        except ValueError as error:
            raise PredictionFailed(
                f"output {tensor.name!r}: {error}; a score of one class alone cannot be voted on"
            ) from None
    return _scores(task, tensor.name, array.reshape(len(array), columns))


def voted(answer: Label | Scores) -> str:
    """The class that an answer votes for; of equal scores the first."""
    if isinstance(answer, Label):
        return answer.label
    best = max(range(len(answer.probabilities)), key=answer.probabilities.__getitem__)
    return answer.labels[best]


def loss(task: Task, answer: Answer | None, right: Truth) -> float:
    """How wrong an answer was, in [0, 1]; None did not come in time.

    Classes: 0 or 1. Numbers: the difference over `task.scale`, squared or not, at most 1.
    """
    if answer is None:
        return MISSING_LOSS
    if isinstance(answer, Number):
        share = abs(answer.value - float(right)) / task.scale
        return min(1.0, share * share if task.loss == "squared" else share)
    return 0.0 if voted(answer) == right else 1.0


def as_plain(answer: Answer) -> str | float | dict[str, float]:
    """An answer as JSON shows it."""
    if isinstance(answer, Label):
        return answer.label
    if isinstance(answer, Number):
        return answer.value
    return dict(zip(answer.labels, answer.probabilities, strict=True))


def _chosen(task: Task, outputs: Sequence[Tensor]) -> Tensor:
    if not outputs:
        raise PredictionFailed("the model gave no output")
    for tensor in outputs:
        if task.output in {None, tensor.name}:
            if not tensor.shape:
                raise PredictionFailed(f"output {tensor.name!r} has no axis of items")
            return tensor
    names = ", ".join(tensor.name for tensor in outputs)
    raise PredictionFailed(f"the model has no output {task.output!r} (outputs: {names})")


def _strings(tensor: Tensor) -> list[str]:
    """Elements of a BYTES tensor: each a length in four bytes, little-endian, and its bytes."""
    data, texts, at = bytes(tensor.data), [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end].decode("utf-8"))
        at = end
    if len(texts) != tensor.shape[0]:
        raise PredictionFailed(
            f"output {tensor.name!r} holds {len(texts)} strings for {tensor.shape[0]} items"
        )
    return texts


def _scores(task: Task, name: str, array: NDArray[Any]) -> list[Answer]:
    """(n, k) scores -> n answers."""
    count = array.shape[1]
    labels = task.labels or tuple(str(index) for index in range(count))
    if len(labels) != count:
        raise PredictionFailed(
            f"output {name!r} has {count} scores an item, but the task names {len(labels)} labels"
        )
    x = array.astype(np.float64)
    sums = x.sum(axis=1, keepdims=True)
    if (x >= 0).all() and (abs(sums - 1) <= _SUM_TOLERANCE).all():
        x = x / sums
    else:
        x = np.exp(x - x.max(axis=1, keepdims=True))
        x /= x.sum(axis=1, keepdims=True)
    return [Scores(labels, tuple(row)) for row in x.tolist()]
