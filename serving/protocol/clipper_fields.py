"""The members of a management command's body, and its answer.

Pure. Every error is one of Clipper's messages, in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.errors import InvalidRequest, nearest
from serving.protocol import clipper
from serving.protocol.bounded_json import write
from serving.protocol.tfs_tensors import json_type

_INT32 = range(-(2**31), 2**31)


class Refused(InvalidRequest):
    """A command that is not carried out, with the message that says why."""


class Reply(NamedTuple):
    """The answer to a command."""

    status: int
    text: str
    is_json: bool


class Fields:
    """The members of a body, each checked when it is asked for.

    Every method raises `clipper.RequestError`, in Clipper's words, where the member is missing or
    of another type.
    """

    def __init__(self, given: Mapping[str, Any], schema: str) -> None:
        self._given = given
        self._schema = schema

    def string(self, key: str) -> str:
        """A text."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self._mismatch(key, "String", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise clipper.json_error(f"JSON key {key} is no text", self._schema) from None
        return value

    def strings(self, key: str) -> list[str]:
        """Texts."""
        value = self._value(key)
        if not isinstance(value, list):
            raise self._mismatch(key, "Array", value)
        for item in value:
            if not isinstance(item, str):
                raise clipper.json_error(
                    f"Array input of type {json_type(item)} is not of type string", self._schema
                )
        return [str(item) for item in value]

    def integer(self, key: str) -> int:
        """A whole number of 32 bits."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mismatch(key, "Number", value)
        if not isinstance(value, int) or value not in _INT32:
            raise clipper.json_error(
                f"PredictionData of type Number is not of type int (key {key})", self._schema
            )
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise clipper.json_error(
                f"Type mismatch! JSON key {key} expected type bool but found type "
                f"{json_type(value)}",
                self._schema,
            )
        return value

    def present(self, *keys: str) -> dict[str, Any]:
        """Those of some members that are there, of whatever type: who takes them checks it."""
        return {key: self._given[key] for key in keys if key in self._given}

    def only(self, *keys: str) -> None:
        """Refuse members that are none of these: a misspelt one would be ignored in silence.

        Clipper ignores what it does not know; its clients send what it does.
        """
        for key in self._given:
            if key not in keys:
                raise clipper.json_error(
                    f"JSON key {key!r} is not known{nearest(key, keys)}", self._schema
                )

    def optional_object(self, key: str) -> Mapping[str, Any]:
        """An object that may be absent: then an empty one."""
        value = self._given.get(key, {})
        if not isinstance(value, dict):
            raise self._mismatch(key, "Object", value)
        return value

    def optional_integer(self, key: str, default: int) -> int:
        """A whole number that may be absent."""
        return self.integer(key) if key in self._given else default

    def user(self, key: str) -> str:
        """A user's id: a whole number, or a text."""
        return self.string(key) if isinstance(self._value(key), str) else str(self.integer(key))

    def _value(self, key: str) -> Any:
        if key not in self._given:
            raise clipper.json_error(f"JSON object does not have required key: {key}", self._schema)
        return self._given[key]

    def _mismatch(self, key: str, expected: str, value: object) -> clipper.RequestError:
        # The missing blank is Clipper's.
        return clipper.json_error(
            f"Type mismatch! JSON key {key} expected type {expected}but found type "
            f"{json_type(value)}",
            self._schema,
        )


def reply(outcome: object) -> Reply:
    """The answer that a command which was carried out gives: a text as it is, else JSON."""
    if isinstance(outcome, str):
        return Reply(200, outcome, False)
    return Reply(200, write(outcome), True)


def refusal(error: Exception) -> Reply:
    """The answer of a command that was not."""
    return Reply(400, str(error), False)
