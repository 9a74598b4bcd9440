"""Hints of errors: the nearest valid name, and the new one of an old name."""

from __future__ import annotations

import pytest

from serving.error_text import RENAMED, nearest
from serving.errors import InvalidSettings
from serving.settings import SETTINGS, ServingSettings


@pytest.mark.parametrize("old", [name for name in RENAMED if "." in name])
def test_an_old_setting_names_the_new_one(old: str) -> None:
    assert RENAMED[old] in SETTINGS
    assert old not in SETTINGS
    for name in (old, f"models.echo.{old}"):
        with pytest.raises(InvalidSettings, match=f"which is now .{RENAMED[old]}."):
            ServingSettings().with_changes({name: 1})


def test_an_old_value_names_the_new_one() -> None:
    with pytest.raises(InvalidSettings, match=r"which is now .inference."):
        ServingSettings().with_changes({"server.metrics": "query"})


def test_a_new_name_is_given_only_where_it_is_valid() -> None:
    assert nearest("--most", ["--max-evaluations"]) == ", which is now '--max-evaluations'"
    assert nearest("--most", ["--trials"]) == ""


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--runs", ", did you mean '--runs-dir'?"),  # part of a name is nearer than like letters
        ("--trails", ", did you mean '--trials'?"),
        ("--output", ""),  # dashes make nothing alike
        ("--", ""),
    ],
)
def test_the_nearest_option(given: str, hint: str) -> None:
    assert nearest(given, ["--trust", "--trials", "--runs-dir", "--seed"]) == hint
