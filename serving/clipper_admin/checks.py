"""Checks of callers' arguments: names, versions, packages and model paths."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
from collections.abc import Sequence

from serving.clipper_admin.exceptions import ClipperException

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check_versioned_name(name: str, version: str) -> None:
    """Raise ClipperException unless a name and a version fit into host names and labels."""
    for what, value in (("name", name), ("version", version)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ClipperException(
                f"Invalid value: {value}: a model {what} must be a valid DNS-1123 subdomain. It "
                "must consist of lower case alphanumeric characters or '-', and must start and end "
                f"with an alphanumeric character (regex used for validation is {_NAME.pattern!r})"
            )


def absolute_reference(model_data_path: str) -> str:
    """Return the absolute path of a model file or folder, or of `path/to/file.py:Name`.

    Raises ClipperException if it does not exist.
    """
    file, separator, attribute = model_data_path, "", ""
    if not pathlib.Path(model_data_path).exists():
        file, separator, attribute = model_data_path.rpartition(":")
    path = pathlib.Path(file or model_data_path)
    if not path.exists():
        raise ClipperException(
            f"There is no file or folder {path.absolute()}; expected a model file, a folder "
            "with a model.yaml, or path/to/file.py:Name"
        )
    return f"{path.absolute()}{separator}{attribute}"


def check_packages(packages: Sequence[str] | None) -> None:
    """Raise ClipperException for packages that are missing where models run."""
    missing = []
    for package in packages or ():
        try:
            importlib.metadata.distribution(re.split(r"[^A-Za-z0-9._-]", package, maxsplit=1)[0])
        except (importlib.metadata.PackageNotFoundError, ValueError):
            missing.append(package)
    if missing:
        raise ClipperException(
            f"{', '.join(missing)} is not installed where the models run; install it there with pip"
        )
