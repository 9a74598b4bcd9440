"""Settings of an application: its models, selection policy and SLO."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from serving.errors import InvalidSettings
from serving.selection import registry
from serving.selection.model_output import CLASSES, Task, is_number, require
from serving.selection.policy import Policy

InputType = Literal["integers", "floats", "doubles", "strings", "bytes"]
Contexts = Literal["shared", "user"]

MAX_USERS = 100_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application's settings."""

    name: str
    """Name in request paths."""
    input_type: InputType = "doubles"
    default_output: str = ""
    """Response if there is no timely output with enough confidence."""
    latency_slo_s: float = 0.1
    """Seconds after which the outputs that have arrived are combined."""
    models: tuple[str, ...] = ()
    policy: str = "fixed"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Cost of querying each model, in units of loss: 0.01 equals one error in a hundred."""
    task: Task = CLASSES
    contexts: Contexts = "shared"
    most_users: int = 100_000
    """Maximum number of user states, beyond which those with the oldest feedback are dropped."""
    confidence_threshold: float = 0.0
    suspicious_threshold: float = 0.3
    """Agreement below which outputs are marked as suspicious; 0 means never.

    The default marks one clean image in twenty (benchmarks/selection.py).
    """

    def __post_init__(self) -> None:
        is_name = _NAME.fullmatch(self.name) is not None
        expected = "letters, digits, dots, dashes and underscores, a letter or digit first"
        require(is_name, "name", self.name, expected)
        types = get_args(InputType)
        require(
            self.input_type in types, "input_type", self.input_type, f"one of {', '.join(types)}"
        )
        slo_s = self.latency_slo_s
        require(0 < slo_s < math.inf, "latency_slo_s", slo_s, "seconds above 0")
        require(self.contexts in get_args(Contexts), "contexts", self.contexts, "shared or user")
        expected = f"a whole number from 1 to {MAX_USERS}"
        require(1 <= self.most_users <= MAX_USERS, "most_users", self.most_users, expected)
        are_models = len(set(self.models)) == len(self.models) and all(self.models)
        require(are_models, "models", self.models, "distinct names")
        for option in ("confidence_threshold", "suspicious_threshold"):
            require(0 <= getattr(self, option) <= 1, option, getattr(self, option), "0 to 1")
        self.selection_policy()

    def selection_policy(self) -> Policy[Any]:
        """Build the selection policy.

        Raises:
            InvalidSettings: the policy or an option is unknown or invalid.
        """
        return registry.create(self.policy, task=self.task, costs=self.costs, options=self.options)

    def with_models(self, *models: str) -> Application:
        """Return a copy with more models.

        Raises:
            InvalidSettings: a model is already linked.
        """
        return dataclasses.replace(self, models=(*self.models, *models))

    def without_models(self, *models: str) -> Application:
        """Return a copy without some models.

        Raises:
            InvalidSettings: a model is not linked.
        """
        for model in models:
            require(model in self.models, "models", model, f"one of {', '.join(self.models)}")
        kept = tuple(model for model in self.models if model not in models)
        return dataclasses.replace(self, models=kept)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Application:
        """Build an application from its JSON form.

        Raises:
            InvalidSettings: a key is unknown, a value is invalid, or the name is missing.
        """
        try:
            return cls._from_json(data)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise InvalidSettings(f"application: a value of the wrong type ({error})") from error

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Application:
        names = [field.name for field in dataclasses.fields(cls)]
        for key in data:
            require(key in names, "application", key, f"one of {', '.join(names)}")
        require("name" in data, "application", dict(data), "a name")
        task = data.get("task", {})
        require(isinstance(task, Mapping), "task", task, "an object")
        for option in ("confidence_threshold", "suspicious_threshold"):
            value = data.get(option, 0.0)
            require(is_number(value), option, value, "a number")
        most_users = data.get("most_users", 1)
        is_whole = isinstance(most_users, int) and not isinstance(most_users, bool)
        require(is_whole, "most_users", most_users, "a whole number")
        for option in ("policy", "contexts", "default_output"):
            require(isinstance(data.get(option, ""), str), option, data.get(option), "a string")
        for option in ("options", "costs"):
            value = data.get(option, {})
            require(isinstance(value, Mapping), option, value, "an object")
        models = data.get("models", ())
        is_list = isinstance(models, Sequence) and not isinstance(models, str)
        are_names = is_list and all(isinstance(one, str) for one in models)
        require(are_names, "models", models, "a list of names")
        return cls(**{**data, "models": tuple(models), "task": Task.from_json(task)})
