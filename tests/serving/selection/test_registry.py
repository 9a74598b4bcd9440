"""Policies by name: known names and options, checked with what was expected."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import pytest

from serving.errors import InvalidSettings
from serving.selection import registry

WRONG = [
    ("exp5", {}, {}, "did you mean 'exp3'|did you mean 'exp4'"),
    ("exp3", {"gama": 0.1}, {}, "did you mean 'gamma'"),
    ("exp3", {"gamma": 0.0}, {}, "gamma = 0.0, expected a number above 0"),
    ("exp3", {"gamma": "0.1"}, {}, "gamma = '0.1', expected a number"),
    ("exp3", {"gamma": True}, {}, "gamma = True, expected a number"),
    ("exp3", {"gamma": None}, {}, "gamma = None, expected a number"),
    ("exp3", {"gamma": float("nan")}, {}, "gamma = nan"),
    ("exp3", {"sharing": 1.0}, {}, "sharing = 1.0, expected 0 or a number below 1"),
    ("exp4", {"vote": "loudest"}, {}, "vote = 'loudest', expected majority or scores"),
    ("exp4", {"vote": 3}, {}, "vote = 3, expected a string"),
    ("exp4", {"memory": 1}, {}, "memory = 1.0, expected 2 or more"),
    ("epsilon-greedy", {"epsilon": 1.5}, {}, "epsilon = 1.5, expected 0 to 1"),
    ("thompson", {"failures": 0}, {}, "failures = 0.0, expected a number above 0"),
    ("per-user", {"ridge": 0}, {}, "ridge = 0.0, expected 0.001 to 1e6"),
    ("split", {"shares": {"a": -1}}, {}, "shares.a = -1.0, expected a number of 0 or more"),
    ("split", {"shares": {"a": 0}}, {}, "expected at least one share above 0"),
    ("split", {"shares": ["a"]}, {}, "expected an object of model names and numbers"),
    ("split", {"by": "day"}, {}, "by = 'day', expected user or query"),
    ("fixed", {"model": ""}, {}, "model = ''"),
    ("fixed", {"task": 1}, {}, "no option 'task'"),
    ("fixed", {}, {"a": 0.1}, "'fixed' does not weigh costs"),
    ("exp3", {}, {"a": 2.0}, "costs.a = 2.0, expected 0 to 1"),
    ("exp3", {}, {"a": "dear"}, "expected an object of model names and numbers"),
]


def options_of(name: str) -> dict[str, Any]:
    """A policy's options with their defaults."""
    return {
        field.name: field.default_factory()
        if field.default is dataclasses.MISSING
        else field.default
        for field in dataclasses.fields(registry.POLICIES[name])
        if field.name not in {"task", "costs"}
    }


@pytest.mark.parametrize(("name", "options", "costs", "text"), WRONG)
def test_a_wrong_policy_says_what_was_expected(
    name: str, options: dict[str, Any], costs: dict[str, Any], text: str
) -> None:
    """Names, options and costs are refused with what was given and what would be right."""
    with pytest.raises(InvalidSettings, match=text):
        registry.create(name, options=options, costs=costs)


@pytest.mark.parametrize("name", registry.NAMES)
def test_the_defaults_of_a_policy_may_be_given(name: str) -> None:
    """Every option is accepted with its default, and the policy is the same."""
    options = options_of(name)
    assert registry.create(name, options=options) == registry.create(name)


def test_a_whole_number_passes_for_a_number() -> None:
    """JSON writes 1 for 1.0."""
    assert registry.create("exp3", options={"gamma": 1}).weights(
        registry.create("exp3").initial(("a", "b"))
    ) == {"a": 0.5, "b": 0.5}


def test_the_page_names_every_policy_and_option() -> None:
    """docs/selection.md cannot drift from the code."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "selection.md").read_text("utf-8")
    for name in registry.NAMES:
        assert re.search(rf"^\| `{name}` \|", page, flags=re.MULTILINE), name
        for option, default in options_of(name).items():
            row = re.search(rf"^\| .*`{name}`.* \| `{option}` \| (.*?) \|", page, re.MULTILINE)
            assert row, (name, option)
            if isinstance(default, float):
                assert float(row[1].split()[0]) == default, (name, option)
