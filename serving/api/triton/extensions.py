"""Triton's extensions over REST: statistics, model configuration, model repository.

GET  /v2/models[/{m}[/versions/{v}]]/stats
GET  /v2/models/{m}[/versions/{v}]/config
POST /v2/repository/index                      {"ready": bool}
POST /v2/repository/models/{m}/load|unload     {"parameters": {"config": "..."}}
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from serving.api.parsing.bounded_json import MAX_JSON_BYTES, JsonError, read
from serving.error_text import short_repr
from serving.errors import InvalidRequest
from serving.metrics.statistics import BatchTotals, ModelStatistics, Total
from serving.settings import ServingSettings
from serving.values import ModelId, Signature, TensorSpec

EXTENSIONS = ("statistics", "model_configuration", "model_repository")

_KINDS = {"cuda": "KIND_GPU", "cpu": "KIND_CPU"}

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]

_PATH = re.compile(
    r"/v2/(?:"
    r"(?P<all>models/stats)"
    r"|models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/(?P<ask>stats|config)"
    r"|(?P<index>repository/index)"
    r"|repository/models/(?P<controlled>[^/]+)/(?P<control>load|unload)"
    r")/?"
)


class RepositoryIndexEntry(NamedTuple):
    """One version in the repository, loaded or not."""

    name: str
    version: str
    state: State
    reason: str
    """Why the version is not ready; may be empty."""


class ModelConfig(NamedTuple):
    """A version with its settings."""

    model: ModelId
    signature: Signature
    settings: ServingSettings


class ExtensionRequest(NamedTuple):
    """Kind of request for a path, and the model concerned."""

    kind: Literal["stats", "config", "index", "load", "unload"]
    name: str | None
    version: str | None

    @property
    def method(self) -> str:
        """Expected HTTP method."""
        return "GET" if self.kind in {"stats", "config"} else "POST"


def parse_path(path: str) -> ExtensionRequest | None:
    """Parse a path, or return None if it is not one of these."""
    match = _PATH.fullmatch(path.partition("?")[0])
    if match is None:
        return None
    name, version = match["model"] or match["controlled"], match["version"]
    kind: Any = match["ask"] or match["control"] or ("index" if match["index"] else "stats")
    return ExtensionRequest(
        kind, name and urllib.parse.unquote(name), version and urllib.parse.unquote(version)
    )


# Bodies


def only_ready(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> bool:
    """Return whether an index request wants only ready models, or raise InvalidRequest."""
    ready = _object(body, max_json_bytes).get("ready", False)
    if not isinstance(ready, bool):
        raise InvalidRequest(f"ready is {short_repr(ready)}, expected true or false")
    return ready


def load_config(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> Mapping[str, Any] | None:
    """Return the configuration in the body of a load request, if any.

    Raises:
        InvalidRequest: the request is malformed or has files.
    """
    parameters = _object(body, max_json_bytes).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"parameters are {short_repr(parameters)}, expected an object")
    return config_parameter(parameters, max_json_bytes)


def config_parameter(
    parameters: Mapping[str, object], max_json_bytes: int = MAX_JSON_BYTES
) -> Mapping[str, Any] | None:
    """Return the parameter `config` of a load request, if any.

    Raises:
        InvalidRequest: the request is malformed or has files.
    """
    files = [name for name in parameters if name.startswith("file:")]
    if files:
        raise InvalidRequest(
            f"a load cannot contain files ({files[0][:80]}); put the model where the "
            "server finds it"
        )
    text = parameters.get("config")
    if text is None:
        return None
    try:
        config = None
        if isinstance(text, str):
            config = read(text.encode(), constants=True, max_bytes=max_json_bytes)
    except ValueError:  # lone surrogate, or invalid JSON
        config = None
    if not isinstance(config, dict):
        raise InvalidRequest(
            f"parameter config is {short_repr(text)}, expected a JSON object as a string"
        )
    return config


def _object(body: bytes, max_json_bytes: int) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        data = read(body, constants=True, max_bytes=max_json_bytes)
    except JsonError as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequest("the request is not a JSON object")
    return data


# Responses


def statistics_json(models: Iterable[ModelStatistics]) -> dict[str, Any]:
    """Encode the statistics of models as JSON."""
    return {"model_stats": [_model_json(model) for model in models]}


def _model_json(given: ModelStatistics) -> dict[str, Any]:
    return {
        "name": given.model.name,
        "version": given.model.version,
        "last_inference": given.last_inference_ms,
        "inference_count": given.inference_count,
        "execution_count": given.execution_count,
        "inference_stats": _totals(given),
        "batch_stats": [{"batch_size": one.batch_size, **_totals(one)} for one in given.batches],
    }


def _totals(given: ModelStatistics | BatchTotals) -> dict[str, Any]:
    return {
        stage: dataclasses.asdict(total)
        for stage, total in given._asdict().items()
        if isinstance(total, Total)
    }


def config_json(given: ModelConfig) -> dict[str, Any]:
    """Return a model's configuration in Triton's fields."""
    settings, signature = given.settings, given.signature
    is_batched = signature.is_batched
    config: dict[str, Any] = {
        "name": given.model.name,
        "platform": signature.platform,
        "backend": signature.platform.partition("_")[0],
        "max_batch_size": settings.batching.max_size if is_batched else 0,
        "input": [_tensor_json(spec, is_batched=is_batched) for spec in signature.inputs],
        "output": [_tensor_json(spec, is_batched=is_batched) for spec in signature.outputs],
        "instance_group": [
            {
                "name": given.model.name,
                "kind": _KINDS.get(settings.accelerator.device, "KIND_AUTO"),
                "count": settings.replica.count,
            }
        ],
        "response_cache": {"enable": settings.cache.capacity_mb > 0},
    }
    if given.model.version.isdecimal():  # Triton has only numeric versions
        config["version_policy"] = {"specific": {"versions": [int(given.model.version)]}}
    if is_batched:
        delay_us = settings.batching.timeout_us
        config["dynamic_batching"] = {"max_queue_delay_microseconds": delay_us}
    if signature.parameters:
        told = {name: {"string_value": text} for name, text in signature.parameters.items()}
        config["parameters"] = told
    return config


def _tensor_json(spec: TensorSpec, *, is_batched: bool) -> dict[str, Any]:
    data_type = "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"
    axis = spec.item_axis if is_batched else None
    dims = [size for at, size in enumerate(spec.shape) if at != axis]
    return {"name": spec.name, "data_type": data_type, "dims": dims}


def index_json(models: Iterable[RepositoryIndexEntry], *, ready: bool) -> list[dict[str, str]]:
    """Encode an index; if `ready`, only of ready models."""
    return [entry._asdict() for entry in models if entry.state == "READY" or not ready]
