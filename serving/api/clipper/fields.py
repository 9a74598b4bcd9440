"""Checked members of Clipper's JSON bodies, with Clipper's one-line errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.api.parsing.bounded_json import MAX_JSON_BYTES, JsonError, read, write
from serving.api.tensorflow.rest_tensors import json_type
from serving.error_text import nearest
from serving.errors import InvalidRequest

JSON_ERROR = "Json error"
MAX_USER = 256
INT32 = range(-(2**31), 2**31)


class RequestError(InvalidRequest):
    """Error answered with 400 and `{"error": name, "cause": text}`."""

    def __init__(self, name: str, cause: str) -> None:
        InvalidRequest.__init__(self, cause)
        self.args = (name, cause)
        self.name = name
        self.cause = cause

    def __str__(self) -> str:
        return self.cause

    def body(self) -> bytes:
        """Return the response's body."""
        return write({"error": self.name, "cause": self.cause}).encode()


class JsonFields:
    """Members of a body; getters raise RequestError, which shows the expected schema."""

    def __init__(self, given: Mapping[str, Any], schema: str) -> None:
        self.given = given
        self._schema = schema

    @classmethod
    def parse(cls, body: bytes, schema: str, max_json_bytes: int = MAX_JSON_BYTES) -> JsonFields:
        """Parse a body; raise RequestError if it is not a JSON object or exceeds `max_json_bytes`."""
        fields = cls({}, schema)
        try:
            value = read(body, max_bytes=max_json_bytes)
        except JsonError as error:
            where = "" if error.offset is None else f" (offset {error.offset})"
            raise fields.error(f"JSON parse error: {error.reason}{where}") from None
        except InvalidRequest as error:
            raise fields.error(str(error)) from None
        if not isinstance(value, dict):
            raise fields.error("Can only get key-value pair from an object")
        fields.given = value
        return fields

    def error(self, reason: str) -> RequestError:
        """Return an error with Clipper's wording."""
        text = f"Error parsing JSON: {reason}. Expected JSON schema: {self._schema}"
        return RequestError(JSON_ERROR, text)

    def mismatch(self, key: str, expected: str, value: object) -> RequestError:
        """Return the error for a member of an unexpected type."""
        # The missing space is Clipper's.
        return self.error(
            f"Type mismatch! JSON key {key} expected type {expected}but found type {json_type(value)}"
        )

    def wrong_element(self, item: object, expected: str) -> RequestError:
        """Return the error for an array element of an unexpected type."""
        return self.error(f"Array input of type {json_type(item)} is not of type {expected}")

    def value(self, key: str) -> Any:
        """Return a required member of any type."""
        if key not in self.given:
            raise self.error(f"JSON object does not have required key: {key}")
        return self.given[key]

    def text(self, key: str) -> str:
        """Return a string, possibly with lone surrogates."""
        value = self.value(key)
        if not isinstance(value, str):
            raise self.mismatch(key, "String", value)
        return value

    def string(self, key: str) -> str:
        """Return a string of valid Unicode."""
        value = self.text(key)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(f"JSON key {key} is not valid text") from None
        return value

    def array(self, key: str) -> list[Any]:
        """Return an array with unchecked elements."""
        value = self.value(key)
        if not isinstance(value, list):
            raise self.mismatch(key, "Array", value)
        return value

    def strings(self, key: str) -> list[str]:
        """Return an array of strings."""
        value = self.array(key)
        for item in value:
            if not isinstance(item, str):
                raise self.wrong_element(item, "string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a 32-bit integer, or the default if one is given and the member is absent."""
        if default is not None and key not in self.given:
            return default
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.mismatch(key, "Number", value)
        if not isinstance(value, int) or value not in INT32:
            raise self.error(f"PredictionData of type Number is not of type int (key {key})")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.mismatch(key, "bool ", value)
        return value

    def user(self, key: str) -> str:
        """Return a user id, given as an integer or a string."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.mismatch(key, "String", value)
        user = str(value)
        if len(user) > MAX_USER:
            raise self.error(f"{key} has {len(user)} characters, at most {MAX_USER} are allowed")
        try:
            user.encode()
        except UnicodeEncodeError:
            raise self.error(f"{key} contains a lone surrogate, which is not valid text") from None
        return user

    def only(self, *keys: str) -> None:
        """Reject members with other names."""
        for key in self.given:
            if key not in keys:
                raise self.error(f"JSON key {key!r} is not known{nearest(key, keys)}")
