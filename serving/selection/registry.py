"""Registry of selection policies by name."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from serving.error_text import nearest
from serving.errors import InvalidSettings
from serving.selection.model_output import Task, is_number
from serving.selection.policies.epsilon_greedy import EpsilonGreedy
from serving.selection.policies.exp3 import Exp3
from serving.selection.policies.exp4 import Exp4
from serving.selection.policies.fixed import Fixed
from serving.selection.policies.per_user import PerUser
from serving.selection.policies.split import Split
from serving.selection.policies.thompson import Thompson
from serving.selection.policy import Policy

POLICIES: Mapping[str, type[Any]] = {
    policy.name: policy for policy in (Fixed, Split, Exp3, Exp4, EpsilonGreedy, Thompson, PerUser)
}
NAMES = tuple(POLICIES)

_SHARED = ("task", "costs")


def create(
    name: str,
    *,
    task: Task | None = None,
    costs: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Policy[Any]:
    """Create a policy; `costs` are in units of loss.

    Raises:
        InvalidSettings: a name or value is invalid, or the policy does not support costs.
    """
    if name not in POLICIES:
        raise InvalidSettings(
            f"policy {name!r} is not known{nearest(name, NAMES)} (policies: {', '.join(NAMES)})"
        )
    policy = POLICIES[name]
    given = dict(options or {})
    fields = {field.name for field in dataclasses.fields(policy)}
    own = sorted(fields.difference(_SHARED))
    hints = typing.get_type_hints(policy)
    for option, value in given.items():
        if option not in own:
            raise InvalidSettings(
                f"policy {name!r} has no option {option!r}{nearest(option, own)} (options: {', '.join(own)})"
            )
        given[option] = _check_option(name, option, value, hints[option])
    if costs:
        if "costs" not in fields:
            raise InvalidSettings(f"policy {name!r} does not weigh costs; choose one that does")
        given["costs"] = _check_option(name, "costs", costs, Mapping[str, float])
    made: Policy[Any] = policy(task=task or Task(), **given)
    return made


def _check_option(policy: str, option: str, value: object, hint: Any) -> object:
    is_optional = type(None) in typing.get_args(hint)
    if value is None and is_optional:
        return None
    if typing.get_origin(hint) is Mapping:
        if isinstance(value, Mapping) and all(
            isinstance(key, str) and is_number(item) for key, item in value.items()
        ):
            return {key: float(item) for key, item in value.items()}
        expected = "an object of model names and numbers"
    elif float in {hint, *typing.get_args(hint)}:
        if is_number(value):
            return float(value)
        expected = "a number"
    else:
        if isinstance(value, str):
            return value
        expected = "a string"
    or_none = " or null" if is_optional else ""
    raise InvalidSettings(
        f"policy {policy!r}: {option} = {value!r:.200}, expected {expected}{or_none}"
    )
