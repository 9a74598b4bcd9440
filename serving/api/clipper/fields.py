"""Body members and responses of management commands, with Clipper's one-line errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.api.clipper import requests
from serving.api.parsing.bounded_json import write
from serving.api.tensorflow.rest_tensors import json_type
from serving.error_text import nearest
from serving.errors import InvalidRequest

_INT32 = range(-(2**31), 2**31)


class CommandError(InvalidRequest):
    """A rejected command."""


class CommandResponse(NamedTuple):
    """Response to a command."""

    status: int
    text: str
    is_json: bool


class CommandFields:
    """Members of a body; getters raise `requests.RequestError`."""

    def __init__(self, given: Mapping[str, Any], schema: str) -> None:
        self._given = given
        self._schema = schema

    def string(self, key: str) -> str:
        """Return a text."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self._mismatch(key, "String", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise requests.json_error(f"JSON key {key} is no text", self._schema) from None
        return value

    def strings(self, key: str) -> list[str]:
        """Return texts."""
        value = self._value(key)
        if not isinstance(value, list):
            raise self._mismatch(key, "Array", value)
        for item in value:
            if not isinstance(item, str):
                raise requests.json_error(
                    f"Array input of type {json_type(item)} is not of type string", self._schema
                )
        return [str(item) for item in value]

    def integer(self, key: str) -> int:
        """Return a 32-bit integer."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mismatch(key, "Number", value)
        if not isinstance(value, int) or value not in _INT32:
            raise requests.json_error(
                f"PredictionData of type Number is not of type int (key {key})", self._schema
            )
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise requests.json_error(
                f"Type mismatch! JSON key {key} expected type bool but found type "
                f"{json_type(value)}",
                self._schema,
            )
        return value

    def present(self, *keys: str) -> dict[str, Any]:
        """Return the present ones of some members, unchecked."""
        return {key: self._given[key] for key in keys if key in self._given}

    def only(self, *keys: str) -> None:
        """Reject other members."""
        for key in self._given:
            if key not in keys:
                raise requests.json_error(
                    f"JSON key {key!r} is not known{nearest(key, keys)}", self._schema
                )

    def optional_object(self, key: str) -> Mapping[str, Any]:
        """Return an object, empty if absent."""
        value = self._given.get(key, {})
        if not isinstance(value, dict):
            raise self._mismatch(key, "Object", value)
        return value

    def optional_integer(self, key: str, default: int) -> int:
        """Return an integer or the default."""
        return self.integer(key) if key in self._given else default

    def user(self, key: str) -> str:
        """Return a user id, given as integer or text."""
        return self.string(key) if isinstance(self._value(key), str) else str(self.integer(key))

    def _value(self, key: str) -> Any:
        if key not in self._given:
            raise requests.json_error(
                f"JSON object does not have required key: {key}", self._schema
            )
        return self._given[key]

    def _mismatch(self, key: str, expected: str, value: object) -> requests.RequestError:
        # The missing space is Clipper's.
        return requests.json_error(
            f"Type mismatch! JSON key {key} expected type {expected}but found type "
            f"{json_type(value)}",
            self._schema,
        )


def reply(outcome: object) -> CommandResponse:
    """Return the response to a command: text as it is, else JSON."""
    if isinstance(outcome, str):
        return CommandResponse(200, outcome, False)
    return CommandResponse(200, write(outcome), True)


def refusal(error: Exception) -> CommandResponse:
    """Return the response for an error."""
    return CommandResponse(400, str(error), False)
