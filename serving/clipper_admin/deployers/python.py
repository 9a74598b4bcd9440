"""Deployer for Python functions, written as modules that replicas import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from serving.api.clipper.inputs import INPUT_TYPES
from serving.clipper_admin.checks import check_packages, check_versioned_name
from serving.clipper_admin.connection import ClipperConnection
from serving.clipper_admin.exceptions import ClipperException, UnconnectedException
from serving.clipper_admin.function_source import save_function


def create_endpoint(
    clipper_conn: ClipperConnection,
    name: str,
    input_type: str,
    func: Callable[[list[Any]], Any],
    default_output: str = "None",
    version: str | int = 1,
    slo_micros: int = 3_000_000,
    labels: Sequence[str] | None = None,
    registry: str | None = None,
    base_image: str = "default",
    num_replicas: int = 1,
    batch_size: int = -1,
    pkgs_to_install: Sequence[str] | None = None,
) -> None:
    """Create an application and deploy a function as its model, or raise ClipperException."""
    clipper_conn.register_application(name, input_type, default_output, slo_micros)
    deploy_python_closure(
        clipper_conn,
        name,
        version,
        input_type,
        func,
        base_image,
        labels,
        registry,
        num_replicas,
        batch_size,
        pkgs_to_install,
    )
    clipper_conn.link_model_to_app(name, name)


def deploy_python_closure(
    clipper_conn: ClipperConnection,
    name: str,
    version: str | int,
    input_type: str,
    func: Callable[[list[Any]], Any],
    base_image: str = "default",  # noqa: ARG001  # images are Docker's
    labels: Sequence[str] | None = None,
    registry: str | None = None,  # noqa: ARG001
    num_replicas: int = 1,
    batch_size: int = -1,
    pkgs_to_install: Sequence[str] | None = None,
) -> None:
    """Deploy a function as a version of a model.

    Args:
        version: a version that is not registered yet.
        input_type: integers, floats, doubles, strings or bytes.
        func: maps a list of inputs to one string per input.
        base_image, registry: without effect.
        batch_size: maximum batch size; -1 means adaptive.
        pkgs_to_install: packages that must be installed on the server.

    Raises:
        ClipperException: the function cannot be written or deployed.
    """
    if not clipper_conn.connected:
        raise UnconnectedException
    check_versioned_name(name, str(version))
    check_packages(pkgs_to_install)
    if input_type not in INPUT_TYPES:
        raise ClipperException(f"{input_type} is not a valid input string")
    folder = clipper_conn.cm.model_folder(name, str(version))
    image = save_function(func, folder, input_type=INPUT_TYPES[input_type])
    clipper_conn.deploy_model(name, version, input_type, image, labels, num_replicas, batch_size)
