"""Reads a YAML file that may be large or malicious: what it may hold is bounded before any of it is built.

In: a file. Out: plain data. Errors say what is too much, or where the text is wrong.
"""

from __future__ import annotations

import pathlib

import yaml

from serving.errors import ModelLoadFailed
from serving.yaml_problem import yaml_problem

MAX_DEPTH = 32
"""Of lists and mappings in one another."""


def read(file: pathlib.Path, *, max_bytes: int, what: str) -> object:
    """What is written in a file.

    Args:
        file: its path.
        max_bytes: the most that it may have.
        what: it is meant to be, for messages.

    Raises:
        ModelLoadFailed: it is no YAML, or too much of it.
    """
    try:
        return _read(file, max_bytes, what)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(str(file), f"not valid YAML: {yaml_problem(error)}") from error


def _read(file: pathlib.Path, max_bytes: int, what: str) -> object:
    with file.open("rb") as opened:
        text = opened.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ModelLoadFailed(str(file), f"larger than {max_bytes} bytes; is it {what}?")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            # A few lines of them stand for gigabytes, once they are written out in an error or the record.
            raise ModelLoadFailed(str(file), "aliases (*name) are not allowed; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:  # the time that reading takes grows with its square
            raise ModelLoadFailed(str(file), f"nested deeper than {MAX_DEPTH}; is it {what}?")
    return yaml.safe_load(text)
