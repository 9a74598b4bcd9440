"""Model outputs (labels, class probabilities or numbers), and their losses in [0, 1]."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from serving.errors import InferenceFailed, InvalidRequest, InvalidSettings
from serving.tensors.arrays import split_bytes
from serving.tensors.json_tensors import NUMPY
from serving.values import Tensor

Kind = Literal["classes", "number"]
Loss = Literal["squared", "absolute"]

TrueLabel = str | float

MISSING_LOSS = 1.0
"""Loss of a queried model whose output was not in time."""

_SUM_TOLERANCE = 1e-3


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Check a condition on an option.

    Raises:
        InvalidSettings: the condition does not hold.
    """
    if not holds:
        raise InvalidSettings(f"{option} = {value!r:.200}, expected {expected}")


class Label(NamedTuple):
    """A class predicted by a model."""

    label: str


class Scores(NamedTuple):
    """Class probabilities, in label order."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class Number(NamedTuple):
    """A number predicted by a model."""

    value: float


ModelOutput = Label | Scores | Number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Kind of prediction of an application's models, and the measure of its loss."""

    kind: Kind = "classes"
    output: str | None = None
    """Name of the output to use; None means the first."""
    labels: tuple[str, ...] = ()
    """Class labels in the order of scores; if empty, labels are indices."""
    scale: float = 1.0
    """Difference between numbers at which the loss is 1."""
    tolerance: float | None = None
    """Largest difference at which numbers agree; None means a tenth of `scale`."""
    loss: Loss = "squared"

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "task.kind", self.kind, "classes or number")
        require(self.loss in get_args(Loss), "task.loss", self.loss, "squared or absolute")
        is_scale = math.isfinite(self.scale) and self.scale > 0
        require(is_scale, "task.scale", self.scale, "a number above 0")
        is_tolerance = self.tolerance is None or self.tolerance >= 0
        require(is_tolerance, "task.tolerance", self.tolerance, "a number of 0 or more, or none")
        is_set = len(set(self.labels)) == len(self.labels)
        require(is_set, "task.labels", self.labels, "no label twice")

    @property
    def agreeing(self) -> float:
        """Effective tolerance: a tenth of `scale` if none is set."""
        return self.scale / 10 if self.tolerance is None else self.tolerance

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Build a task from its JSON form.

        Raises:
            InvalidSettings: a key is unknown or a value is invalid.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in data:
            if key not in names:
                raise InvalidSettings(
                    f"task.{key} is not known, expected one of {', '.join(names)}"
                )
        labels = data.get("labels", ())
        is_list = isinstance(labels, Sequence) and not isinstance(labels, str)
        is_names = is_list and all(isinstance(label, str) for label in labels)
        require(is_names, "task.labels", labels, "a list of names")
        scale, tolerance = data.get("scale", 1.0), data.get("tolerance")
        require(is_number(scale), "task.scale", scale, "a number")
        require(tolerance is None or is_number(tolerance), "task.tolerance", tolerance, "a number")
        output = data.get("output")
        require(isinstance(output, str | None), "task.output", output, "a name")
        return cls(**{**data, "labels": tuple(labels)})


CLASSES = Task()


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def label_text(value: object) -> str:
    """Normalize a label: 3, 3.0 and "3" are the same.

    Raises:
        ValueError: `value` is neither a string nor an integer.
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
    """Return the class that a label, or an index into the labels, denotes.

    Raises:
        ValueError: `value` is neither a string nor an integer.
    """
    label = label_text(value)
    if task.labels and not isinstance(value, str | bytes) and 0 <= int(label) < len(task.labels):
        return task.labels[int(label)]
    return label


def true_label(task: Task, value: object) -> TrueLabel:
    """Check and normalize a true label.

    Raises:
        InvalidRequest: `value` is neither a label nor a finite number.
    """
    if task.kind == "classes":
        try:
            return class_of(task, value)
        except ValueError as error:
            raise InvalidRequest(f"label: {error}") from None
    if not is_number(value) or not math.isfinite(value):
        raise InvalidRequest(f"label: {value!r:.100} is not a finite number")
    return float(value)


def model_outputs(task: Task, outputs: Sequence[Tensor]) -> list[ModelOutput]:
    """Parse a model's outputs, one per item.

    For classes, floats (n, k) with k > 1 are scores or logits; strings or integers (n,) or (n, 1)
    are labels. For numbers, the shape is (n,) or (n, 1).

    Raises:
        InferenceFailed: the outputs are not as expected, or a value is not finite.
    """
    tensor = _select_output(task, outputs)
    if tensor.datatype == "BYTES":
        if task.kind == "number":
            raise InferenceFailed(f"output {tensor.name!r} holds strings, expected numbers")
        try:
            texts = split_bytes(tensor.data, tensor.shape[0])
        except InvalidRequest as error:
            raise InferenceFailed(f"output {tensor.name!r}: {error}") from None
        return [Label(text.decode()) for text in texts]
    array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)
    columns = math.prod(array.shape[1:])
    if not np.isfinite(array).all():
        raise InferenceFailed(f"output {tensor.name!r} holds values that are not finite")
    if task.kind == "number":
        if columns != 1:
            raise InferenceFailed(
                f"output {tensor.name!r} of shape {tensor.shape} holds {columns} numbers per item, expected 1"
            )
        return [Number(float(value)) for value in array.ravel()]
    if columns == 1:
        try:
            return [Label(class_of(task, value)) for value in array.ravel().tolist()]
        except ValueError as error:
            raise InferenceFailed(
                f"output {tensor.name!r}: {error}; a score of one class alone cannot be voted on"
            ) from None
    return _scores(task, tensor.name, array.reshape(len(array), columns))


def top_class(response: Label | Scores) -> str:
    """Return the class with the highest score."""
    if isinstance(response, Label):
        return response.label
    best = max(range(len(response.probabilities)), key=response.probabilities.__getitem__)
    return response.labels[best]


def loss(task: Task, response: ModelOutput | None, right: TrueLabel) -> float:
    """Return the loss of an output in [0, 1]; None means a missing output.

    The loss of a number is its error divided by `task.scale`, squared or not, at most 1.
    """
    if response is None:
        return MISSING_LOSS
    if isinstance(response, Number):
        share = abs(response.value - float(right)) / task.scale
        return min(1.0, share * share if task.loss == "squared" else share)
    return 0.0 if top_class(response) == right else 1.0


def _select_output(task: Task, outputs: Sequence[Tensor]) -> Tensor:
    if not outputs:
        raise InferenceFailed("the model gave no output")
    for tensor in outputs:
        if task.output in {None, tensor.name}:
            if not tensor.shape:
                raise InferenceFailed(f"output {tensor.name!r} has no axis of items")
            return tensor
    names = ", ".join(tensor.name for tensor in outputs)
    raise InferenceFailed(f"the model has no output {task.output!r} (outputs: {names})")


def _scores(task: Task, name: str, array: NDArray[Any]) -> list[ModelOutput]:
    count = array.shape[1]
    labels = task.labels or tuple(str(index) for index in range(count))
    if len(labels) != count:
        raise InferenceFailed(
            f"output {name!r} has {count} scores per item, but the task names {len(labels)} labels"
        )
    x = array.astype(np.float64)
    sums = x.sum(axis=1, keepdims=True)
    if (x >= 0).all() and (abs(sums - 1) <= _SUM_TOLERANCE).all():
        x = x / sums
    else:
        x = np.exp(x - x.max(axis=1, keepdims=True))
        x /= x.sum(axis=1, keepdims=True)
    return [Scores(labels, tuple(row)) for row in x.tolist()]
