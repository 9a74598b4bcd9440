"""Errors of both trees: each crosses a process boundary whole, and is drawn in its docstring."""

from __future__ import annotations

import inspect
import pickle
import re
import types
from collections.abc import Callable

import pytest

import serving.errors
import tuner.errors

TREES = (serving.errors, tuner.errors)

FACTS = {
    "text": "batching.max_size = 0, expected a whole number from 1 to 4096",
    "name": "resnt",
    "known": ("linear", "resnet"),
    "version": "3",
    "limit_bytes": 1024,
    "capacity": 2048,
    "retry_after_s": 1.5,
    "takes_s": 0.025,
    "where": "queue",
    "now": 12,
    "reason": "oom",
    "model": "resnet",
    "node": "10.0.0.7",
    "file": "resnet.yaml",
    "key": "knobs.batching.max_size",
    "cause": "crash",
    "holder": "4711",
    "what": "study 'resnet-20'",
    "instead": "choose another --study",
    "option": "--shape height=224",
}
"""An example for every argument that an error of either tree takes."""


def classes(tree: types.ModuleType) -> list[type[Exception]]:
    """The exceptions that a module defines itself, in order."""
    return [
        member
        for member in vars(tree).values()
        if inspect.isclass(member)
        and issubclass(member, Exception)
        and member.__module__ == tree.__name__
    ]


ALL = [member for tree in TREES for member in classes(tree)]


def example(kind: Callable[..., Exception]) -> Exception:
    """An error with an example of each of its facts; without a constructor of its own, one text."""
    parameters = inspect.signature(kind.__init__).parameters
    if "args" in parameters:
        return kind(FACTS["text"])
    return kind(*(FACTS[name] for name in parameters if name != "self"))


def drawn(tree: types.ModuleType) -> list[tuple[int, str]]:
    """(depth, name) of each line of the tree in the docstring."""
    lines = []
    for line in (tree.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)\b", line)
        if match:
            lines.append((len(match[1]) // 4, match[2]))
    return lines


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_error_pickles_with_its_facts(kind: type[Exception]) -> None:
    """An error that crosses a process boundary has the same class, text and facts."""
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_error_says_something_in_one_line(kind: type[Exception]) -> None:
    """A text is one line for a person, not the repr of its arguments."""
    error = example(kind)
    assert str(error).strip()
    assert "\n" not in str(error)
    assert len(error.args) < 2 or str(error) != str(error.args)


@pytest.mark.parametrize("kind", classes(serving.errors), ids=lambda kind: kind.__name__)
def test_every_serving_error_has_a_status_of_an_error(kind: type[Exception]) -> None:
    """The HTTP status that answers it is a client's or a server's error."""
    status = getattr(kind, "status", None)
    assert isinstance(status, int)
    assert 400 <= status < 600


@pytest.mark.parametrize("kind", classes(tuner.errors), ids=lambda kind: kind.__name__)
def test_every_tuner_error_has_a_documented_exit_code(kind: type[Exception]) -> None:
    """1: the study could not be done; 2: wrong use; 130: interrupted."""
    assert getattr(kind, "exit_code", None) in {1, 2, 130}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)
def test_the_drawn_tree_is_the_tree_of_classes(tree: types.ModuleType) -> None:
    """Every class is drawn once, below the class that it extends; nothing else is drawn."""
    path: list[str] = []
    parents: dict[str, str | None] = {}
    for depth, name in drawn(tree):
        path[depth:] = [name]
        parents[name] = path[depth - 1] if depth else None
    expected = {
        kind.__name__: base.__name__
        if (base := kind.__bases__[0]).__module__ == tree.__name__
        else None
        for kind in classes(tree)
    }
    assert parents == expected


def test_the_drawn_statuses_are_the_classes_statuses() -> None:
    """A number in brackets behind a name is the status of that class."""
    found = re.findall(r"(\w+) \((\d{3})\)", serving.errors.__doc__ or "")
    assert found
    for name, status in found:
        assert getattr(serving.errors, name).status == int(status), name


def test_an_unknown_name_gets_the_nearest_valid_one() -> None:
    """A mistyped model is answered with the model that was meant."""
    error = serving.errors.UnknownModel("resnt", ("linear", "resnet"))
    assert "did you mean 'resnet'?" in str(error)
