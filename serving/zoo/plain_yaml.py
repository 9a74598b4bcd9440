"""Reads a YAML file that says what a model is: as bounded data, or not at all.

In: a file. Out: plain data. Errors are those of a model that cannot be loaded.
"""

from __future__ import annotations

import pathlib

import yaml

from serving import bounded_yaml
from serving.errors import ModelLoadFailed
from serving.yaml_problem import yaml_problem


def read(file: pathlib.Path, *, max_bytes: int, what: str) -> object:
    """What is written in a file.

    Args:
        file: its path.
        max_bytes: the most that it may have.
        what: it is meant to be, for messages.

    Raises:
        ModelLoadFailed: it cannot be read, is no YAML, or too much of it.
    """
    try:
        return bounded_yaml.read(file, max_bytes=max_bytes)
    except yaml.YAMLError as error:
        raise ModelLoadFailed(str(file), f"not valid YAML: {yaml_problem(error)}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelLoadFailed(str(file), f"{reason}; is it {what}?") from error
    except ValueError as error:
        raise ModelLoadFailed(str(file), f"{yaml_problem(error)}; is it {what}?") from error
