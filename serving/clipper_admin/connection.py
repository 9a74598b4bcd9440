"""Clipper connection: applications, models and versions of one server.

Names, parameters and defaults match Clipper's `clipper_admin`, with aliases for the names in its
paper. Logs where Clipper prints.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.clipper_admin.checks import absolute_reference, check_packages, check_versioned_name
from serving.clipper_admin.container_manager import CONTAINERLESS_MODEL_IMAGE, get, post
from serving.clipper_admin.exceptions import ClipperException, UnconnectedException
from serving.clipper_admin.function_trial import run_like_deployed
from serving.clipper_admin.process_manager import ProcessContainerManager

log = logging.getLogger(__name__)

DEFAULT_PREDICTION_CACHE_SIZE_BYTES = 33_554_432


class ClipperConnection:
    """Administrative connection to a server."""

    def __init__(self, container_manager: ProcessContainerManager) -> None:
        self.cm = container_manager
        self.connected = False

    def start_clipper(
        self,
        query_frontend_image: str | None = None,  # noqa: ARG002  # images are Docker's
        mgmt_frontend_image: str | None = None,  # noqa: ARG002
        frontend_exporter_image: str | None = None,  # noqa: ARG002
        cache_size: int = DEFAULT_PREDICTION_CACHE_SIZE_BYTES,
        qf_http_thread_pool_size: int = 1,  # noqa: ARG002  # one loop serves all connections
        qf_http_timeout_request: int = 5,  # noqa: ARG002
        qf_http_timeout_content: int = 300,  # noqa: ARG002
        num_frontend_replicas: int = 1,  # noqa: ARG002
    ) -> None:
        """Start a server and connect; parameters for Docker have no effect."""
        self.cm.start_clipper(cache_size=cache_size)
        self.connected = True

    def connect(self) -> None:
        """Connect to a running server."""
        self.cm.connect()
        self.connected = True

    def stop_all(self, graceful: bool = True) -> None:
        """Stop the server and its models, even if another process started it."""
        self.cm.stop_all(graceful=graceful)

    def get_clipper_logs(self, logging_dir: str = "clipper_logs/") -> list[str]:
        """Copy the logs into a folder and return the copies' paths."""
        return self._manager.get_logs(logging_dir)

    def get_query_addr(self) -> str:
        """Return host:port of the query REST API."""
        return self._manager.get_query_addr()

    def get_metric_addr(self) -> str:
        """Return host:port of the Prometheus metrics."""
        return self._manager.get_metric_addr()

    def inspect_instance(self) -> dict[str, Any]:
        """Return the metrics by kind."""
        report: dict[str, Any] = json.loads(get(self.get_query_addr(), "/metrics"))
        return report

    def register_application(
        self,
        name: str,
        input_type: str,
        default_output: str,
        slo_micros: int,
        **selection: object,
    ) -> None:
        """Create an application, with a latency limit in microseconds.

        `default_output` is the response if no model responds in time. `selection` goes beyond
        Clipper: `policy`, `options`, `costs`, `task`, `contexts`, `most_users` and the thresholds.
        """
        self._ask(
            "add_app",
            name=name,
            input_type=input_type,
            default_output=default_output,
            latency_slo_micros=slo_micros,
            **selection,
        )

    def unregister_application(self, name: str) -> None:
        """Remove an application."""
        self._ask("delete_app", name=name)

    def link_model_to_app(self, app_name: str, model_name: str) -> None:
        """Link a model to an application of the same input type."""
        self._ask("add_model_links", app_name=app_name, model_names=[model_name])

    def unlink_model_from_app(self, app_name: str, model_name: str) -> None:
        """Unlink a model from an application."""
        self._ask("delete_model_links", app_name=app_name, model_names=[model_name])

    def get_all_apps(self, verbose: bool = False) -> list[Any]:
        """Return the names of all applications, or details if `verbose`."""
        return self._list("get_all_applications", verbose=verbose)

    def get_app_info(self, name: str) -> dict[str, Any] | None:
        """Return an application's details, or None if unknown."""
        return self._find("get_application", name=name)

    def get_linked_models(self, app_name: str) -> list[str]:
        """Return the names of an application's linked models."""
        return self._list("get_linked_models", app_name=app_name)

    def build_and_deploy_model(
        self,
        name: str,
        version: str | int,
        input_type: str,
        model_data_path: str,
        base_image: str,
        labels: Sequence[str] | None = None,
        container_registry: str | None = None,
        num_replicas: int = 1,
        batch_size: int = -1,
        pkgs_to_install: Sequence[str] | None = None,
    ) -> None:
        """Call `build_model`, then `deploy_model`."""
        image = self.build_model(
            name, version, model_data_path, base_image, container_registry, pkgs_to_install
        )
        self.deploy_model(name, version, input_type, image, labels, num_replicas, batch_size)

    def build_model(
        self,
        name: str,
        version: str | int,
        model_data_path: str,
        base_image: str,  # noqa: ARG002  # nothing is built: models are files
        container_registry: str | None = None,  # noqa: ARG002
        pkgs_to_install: Sequence[str] | None = None,
    ) -> str:
        """Return a model's absolute path, which serves as its image.

        The model is a file, a folder with `model.yaml`, or `path/to/file.py:Name`. Packages must be
        installed on the server.
        """
        check_versioned_name(name, str(version))
        check_packages(pkgs_to_install)
        return absolute_reference(model_data_path)

    def deploy_model(
        self,
        name: str,
        version: str | int,
        input_type: str,
        image: str,
        labels: Sequence[str] | None = None,
        num_replicas: int = 1,
        batch_size: int = -1,
    ) -> None:
        """Start a version, and make it current when it is ready.

        `image` is a bundled model's name, a model file, or `path/to/file.py:function`; a
        `batch_size` of -1 is adaptive.
        """
        version = str(version)
        check_versioned_name(name, version)
        if self.get_model_info(name, version) is not None:
            raise ClipperException(
                f"model with name '{name}' and version '{version}' already exists"
            )
        self.cm.deploy_model(name, version, input_type, image, num_replicas)
        try:
            self.register_model(name, version, input_type, image, labels, batch_size)
        except ClipperException:
            self.cm.stop_models({name: [version]})  # no request would reach them
            raise

    def register_model(
        self,
        name: str,
        version: str | int,
        input_type: str,
        image: str | None = None,
        labels: Sequence[str] | None = None,
        batch_size: int = -1,
    ) -> None:
        """Register a version and make it current, but start nothing."""
        version = str(version)
        check_versioned_name(name, version)
        self._ask(
            "add_model",
            model_name=name,
            model_version=version,
            labels=list(labels or ()),
            input_type=input_type,
            container_name=CONTAINERLESS_MODEL_IMAGE if image is None else image,
            model_data_path="DEPRECATED",
            batch_size=batch_size,
        )

    def set_model_version(
        self, name: str, version: str | int, num_replicas: int | None = None
    ) -> None:
        """Make another version current."""
        self._ask("set_model_version", model_name=name, model_version=str(version))
        if num_replicas is not None:
            self.set_num_replicas(name, num_replicas, version)

    def get_current_model_version(self, name: str) -> str:
        """Return a model's current version, or raise ClipperException."""
        for model in self.get_all_models(verbose=True):
            if model["model_name"] == name and model["is_current_version"]:
                return str(model["model_version"])
        raise ClipperException(f"No versions of model {name} registered with Clipper")

    def get_all_models(self, verbose: bool = False) -> list[Any]:
        """Return all versions as name:version, or details if `verbose`."""
        return self._list("get_all_models", verbose=verbose)

    def get_model_info(self, name: str, version: str | int) -> dict[str, Any] | None:
        """Return a version's details, or None if unknown."""
        return self._find("get_model", model_name=name, model_version=str(version))

    def get_num_replicas(self, name: str, version: str | int | None = None) -> int:
        """Return a version's number of ready replicas (default: the current version)."""
        version = self.get_current_model_version(name) if version is None else str(version)
        return self._manager.get_num_replicas(name, version)

    def set_num_replicas(
        self, name: str, num_replicas: int = 1, version: str | int | None = None
    ) -> None:
        """Set a version's number of replicas (default: the current version) and wait for them."""
        version = self.get_current_model_version(name) if version is None else str(version)
        model = self.get_model_info(name, version)
        if model is None:
            raise ClipperException(
                f"Cannot add container for non-registered model {name}:{version}"
            )
        image = model["container_name"]
        if image == CONTAINERLESS_MODEL_IMAGE:
            raise ClipperException(
                f"Cannot resize the replica set for containerless model {name}:{version}"
            )
        self.cm.set_num_replicas(name, version, model["input_type"], image, num_replicas)

    def get_all_model_replicas(self, verbose: bool = False) -> list[Any]:
        """Return all replicas as name:version:number, or details if `verbose`."""
        return self._list("get_all_containers", verbose=verbose)

    def get_model_replica_info(
        self, name: str, version: str | int, replica_id: int
    ) -> dict[str, Any] | None:
        """Return a replica's details, or None if unknown."""
        return self._find(
            "get_container", model_name=name, model_version=str(version), replica_id=replica_id
        )

    def stop_models(self, model_names: Sequence[str]) -> None:
        """Stop and delete all versions of the given models."""
        self._stop(lambda model: model["model_name"] in model_names)

    def stop_versioned_models(self, model_versions_dict: Mapping[str, Sequence[str]]) -> None:
        """Stop and delete the given versions, even current ones: {name: [version, ...]}."""
        self._stop_versions(
            {name: list(map(str, versions)) for name, versions in model_versions_dict.items()}
        )

    def stop_inactive_model_versions(self, model_names: Sequence[str]) -> None:
        """Stop and delete all but the current versions of the given models."""
        self._stop(
            lambda model: model["model_name"] in model_names and not model["is_current_version"]
        )

    def stop_all_model_containers(self) -> None:
        """Stop and delete all versions of all models."""
        self._stop(lambda _: True)

    def _stop(self, chosen: Callable[[dict[str, Any]], bool]) -> None:
        models: dict[str, list[str]] = {}
        for model in self.get_all_models(verbose=True):
            if chosen(model):
                models.setdefault(model["model_name"], []).append(model["model_version"])
        self._stop_versions(models)

    def _stop_versions(self, models: Mapping[str, Sequence[str]]) -> None:
        self._manager.stop_models(models)
        for name, versions in models.items():
            for version in versions:
                try:
                    self._ask("delete_versioned_model", model_name=name, model_version=version)
                except ClipperException as error:
                    if "already marked as 'invalid'" not in error.msg:
                        raise

    def test_predict_function(
        self, query: Mapping[str, Any], func: Callable[[list[Any]], Any], input_type: str
    ) -> Any:
        """Return a function's outputs, or a message that begins with "Invalid input type".

        The query is {"input": ...} or {"input_batch": [...]}; `func` returns one string per input.
        """
        return run_like_deployed(query, func, input_type)

    # The paper's early names

    create_application = register_application
    delete_application = unregister_application
    replicate_model = set_num_replicas

    @property
    def _manager(self) -> ProcessContainerManager:
        if not self.connected:
            raise UnconnectedException
        return self.cm

    def _ask(self, command: str, **data: object) -> str:
        text = post(self._manager.get_admin_addr(), f"/admin/{command}", data)
        log.debug("command done", extra={"command": command, "answer": text[:200]})
        return text

    def _list(self, command: str, **data: object) -> list[Any]:
        return list(json.loads(self._ask(command, **data)))

    def _find(self, command: str, **data: object) -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(self._ask(command, **data))
        return found or None
