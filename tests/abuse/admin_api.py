"""The admin port as an OpenAPI document: its own routes and Clipper's commands, for the fuzzer and for readers.

`document()` is what `python -m tests.abuse.admin_api` prints. Ranges are kept small where a large value is a
wish that the server would grant: sixty replicas are no fault. What ends the server is left out.
"""

from __future__ import annotations

import json
import sys
from typing import Any

Schema = dict[str, Any]
_NAME: Schema = {"type": "string", "maxLength": 40}
_MODEL: Schema = {"anyOf": [{"enum": ["target", "nobody"]}, _NAME]}
"""Whoever watches asks for `echo`, which is left alone."""
_VERSION: Schema = {"anyOf": [{"enum": ["1", "2"]}, _NAME]}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": -1, "maximum": 2}
_NUMBER: Schema = {"type": "number"}
_ANY: Schema = {}
_KIND: Schema = {"anyOf": [{"enum": ["integers", "floats", "doubles", "bytes", "strings"]}, _NAME]}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_SETTINGS = {
    "batching.max_size": {"type": "integer", "minimum": 0, "maximum": 64},
    "batching.timeout_us": {"type": "integer", "minimum": -1, "maximum": 10_000},
    "batching.policy": {"anyOf": [{"enum": ["fixed", "aimd", "quantile", "delayed"]}, _NAME]},
    "replica.count": {"type": "integer", "minimum": 0, "maximum": 2},
    "replica.threads": {"type": "integer", "minimum": 0, "maximum": 2},
    "cache.capacity_mb": {"type": "integer", "minimum": -1, "maximum": 8},
    "scheduling.queue_capacity": {"type": "integer", "minimum": 500, "maximum": 4096},
    "server.port": {"type": "integer"},
    "models": {"type": "object", "additionalProperties": _ANY, "maxProperties": 2},
}
_VERSIONED = {"model_name": _MODEL, "model_version": _VERSION}
_LINKS = {"app_name": _NAME, "model_names": {"type": "array", "items": _MODEL, "maxItems": 3}}
_BODIES: dict[tuple[str, str], Schema | None] = {
    ("get", "/admin/settings"): None,
    ("patch", "/admin/settings"): _object(
        {"settings": {"type": "object", "properties": _SETTINGS, "additionalProperties": False}},
        restart_replicas=_FLAG, keep_learned=_FLAG,
    ),
    ("get", "/admin/replicas"): None,
    ("get", "/admin/models"): None,
    ("post", "/admin/models"): _object(
        {"model": {"anyOf": [{"enum": ["echo", "linear", "nobody"]}, _NAME]}, "name": _MODEL},
        version=_VERSION, current=_FLAG,
    ),
    ("get", "/admin/models/{name}"): None,
    ("put", "/admin/models/{name}/current"): _object({"version": _VERSION}),
    ("post", "/admin/models/{name}/rollback"): _object({}),
    ("put", "/admin/models/{name}/labels/{label}"): _object({"version": _VERSION}),
    ("delete", "/admin/models/{name}/labels/{label}"): None,
    ("put", "/admin/models/{name}/traffic"): _object(
        {"shares": {"type": "object", "additionalProperties": {"anyOf": [_NUMBER, _ANY]}, "maxProperties": 3}}
    ),
    ("put", "/admin/models/{name}/shadow"): _object({"version": _VERSION}),
    ("delete", "/admin/models/{name}/shadow"): None,
    ("delete", "/admin/models/{name}/versions/{version}"): None,
    ("get", "/metrics"): None,
    ("get", "/health"): None,
    ("get", "/admin/ping"): None,
    ("post", "/admin/add_app"): _object(
        {"name": _NAME, "input_type": _KIND, "default_output": _NAME, "latency_slo_micros": {"type": "integer"}},
        policy=_NAME, options={"type": "object"}, costs={"type": "object"}, task={"type": "object"},
        contexts={"enum": ["shared", "user"]}, confidence_threshold=_NUMBER, suspicious_threshold=_NUMBER,
    ),
    ("post", "/admin/delete_app"): _object({"name": _NAME}),
    ("post", "/admin/add_model_links"): _object(_LINKS),
    ("post", "/admin/delete_model_links"): _object(_LINKS),
    ("post", "/admin/get_linked_models"): _object({"app_name": _NAME}),
    ("post", "/admin/add_model"): _object(
        {**_VERSIONED, "labels": {"type": "array", "items": _NAME, "maxItems": 3}, "input_type": _KIND,
         "container_name": _NAME, "model_data_path": _NAME, "batch_size": {"type": "integer"}}
    ),
    ("post", "/admin/set_model_version"): _object(_VERSIONED),
    ("post", "/admin/delete_versioned_model"): _object(_VERSIONED),
    ("post", "/admin/get_all_applications"): _object({"verbose": _FLAG}),
    ("post", "/admin/get_application"): _object({"name": _NAME}),
    ("post", "/admin/get_all_models"): _object({"verbose": _FLAG}),
    ("post", "/admin/get_model"): _object(_VERSIONED),
    ("post", "/admin/get_all_containers"): _object({"verbose": _FLAG}),
    ("post", "/admin/get_container"): _object({**_VERSIONED, "replica_id": {"type": "integer"}}),
    ("post", "/admin/get_state"): _object({"app_name": _NAME, "uid": {"type": "integer"}}),
    ("post", "/admin/start_containers"): _object(
        {**_VERSIONED, "container_name": _NAME, "input_type": _KIND},
        num_replicas=_COUNT, batch_size={"type": "integer"},
    ),
    ("post", "/admin/set_num_replicas"): _object({**_VERSIONED, "num_replicas": _COUNT}),
    ("post", "/admin/get_num_replicas"): _object(_VERSIONED),
    ("post", "/admin/stop_containers"): _object(
        {"models": {"type": "object", "additionalProperties": {"type": "array", "items": _NAME}, "maxProperties": 2}}
    ),
}  # fmt: skip
"""Method and path -> the body that it expects; None: it has none."""


def document() -> Schema:
    """The OpenAPI document."""
    paths: dict[str, Schema] = {}
    for (method, path), body in _BODIES.items():
        operation: Schema = {
            "operationId": f"{method}{path}".replace("/", "_").replace("{", "").replace("}", ""),
            "responses": {
                "2XX": {"description": "done"},
                "4XX": {"description": "refused, with the reason"},
                "503": {"description": "not now"},
            },
        }
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        schemas = {"name": _MODEL, "version": _VERSION, "label": _NAME}
        operation["parameters"] = [
            {"in": "path", "name": name, "required": True, "schema": {**schemas[name]}}
            for name in names
        ]
        if body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": body}},
            }
        paths.setdefault(path, {})[method] = operation
    return {"openapi": "3.0.3", "info": {"title": "the admin port", "version": "1"}, "paths": paths}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
