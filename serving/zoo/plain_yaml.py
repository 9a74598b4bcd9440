"""Reader for YAML files of bounded size that describe a model."""

from __future__ import annotations

import pathlib

import yaml

from serving.errors import ModelLoadFailed
from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem


def read(file: pathlib.Path, *, max_bytes: int, what: str) -> object:
    """Return the data of a file, which messages call `what`, or raise ModelLoadFailed."""
    try:
        return bounded_yaml.read(file, max_bytes=max_bytes)
    except yaml.YAMLError as error:
        raise ModelLoadFailed(str(file), f"not valid YAML: {yaml_problem(error)}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelLoadFailed(str(file), f"{reason}; is it {what}?") from error
    except ValueError as error:
        raise ModelLoadFailed(str(file), f"{yaml_problem(error)}; is it {what}?") from error
