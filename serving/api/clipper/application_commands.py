"""Clipper's management commands for applications, their links and policy states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serving.api.clipper.fields import JsonFields
from serving.api.clipper.inputs import input_type
from serving.api.clipper.model_commands import INPUT_TYPE, VERBOSE, Command
from serving.api.clipper.service import ClipperService
from serving.errors import InvalidRequest
from serving.selection.application import Application

RESERVED_NAMES = frozenset({"v1", "v2", "monitoring", "admin"})
"""Case-insensitive first path segments of other protocols, forbidden as application names."""

SINGLE_MODEL_POLICY = "fixed"
"""Policy of applications that link at most one model, as in Clipper."""

SELECTION = (
    "policy", "options", "costs", "task", "contexts", "most_users", "confidence_threshold", "suspicious_threshold",
)  # fmt: skip
"""Application members that Clipper lacks: how models are chosen and combined."""

_LINKS = '{ "app_name" := string, "model_names" := [string] }'


def _find(service: ClipperService, name: str, message: str) -> Application:
    application = service.applications.application(name)
    if application is None:
        raise InvalidRequest(message)
    return application


# Applications


def _add_app(service: ClipperService, fields: JsonFields) -> str:
    name = fields.string("name")
    given: dict[str, Any] = {
        "name": name,
        "input_type": input_type(fields.string("input_type")),
        "default_output": fields.string("default_output"),
    }
    latency_slo_micros = fields.integer("latency_slo_micros")
    fields.only(*given, "latency_slo_micros", *SELECTION)
    if service.applications.application(name) is not None:
        raise InvalidRequest(f"application '{name}' already exists")
    if not name or "/" in name or name.lower() in RESERVED_NAMES:
        raise InvalidRequest(
            f"Invalid application name supplied: {name!r}. It is a part of paths: neither empty, "
            f"nor with a slash, nor one of {', '.join(sorted(RESERVED_NAMES))}"
        )
    if latency_slo_micros <= 0:
        raise InvalidRequest(
            f"latency_slo_micros is {latency_slo_micros}, expected microseconds above 0"
        )
    selection = {key: fields.given[key] for key in SELECTION if key in fields.given}
    given |= {"latency_slo_s": latency_slo_micros * 1e-6, **selection}
    service.applications.add(Application.from_json(given))
    return f"Successfully added application with name '{name}'"


def _delete_app(service: ClipperService, fields: JsonFields) -> str:
    name = fields.string("name")
    _find(service, name, f"Application '{name}' does not exist")
    service.applications.delete(name)
    return f"Successfully deleted application with name '{name}'"


def _get_all_applications(service: ClipperService, fields: JsonFields) -> list[Any]:
    if fields.flag("verbose"):
        return [_shown_application(application) for application in service.applications.all()]
    return [application.name for application in service.applications.all()]


def _get_application(service: ClipperService, fields: JsonFields) -> dict[str, Any]:
    application = service.applications.application(fields.string("name"))
    return {} if application is None else _shown_application(application)


def _shown_application(application: Application) -> dict[str, Any]:
    return {
        "input_type": application.input_type,
        "default_output": application.default_output,
        "latency_slo_micros": round(application.latency_slo_s * 1e6),
        "name": application.name,
        "linked_models": list(application.models),
    }


# Links


def _add_model_links(service: ClipperService, fields: JsonFields) -> str:
    name, models = fields.string("app_name"), fields.strings("model_names")
    application = _find(service, name, f"No app with name '{name}' exists.")
    for model in models:
        taken = _input_types(service, model)
        if taken is None:
            raise InvalidRequest(f"No model with name '{model}' exists.")
        if application.input_type not in taken:
            raise InvalidRequest(
                f"Model with name '{model}' has incompatible input_type "
                f"'{' or '.join(taken) or 'none: it does not take one input of one item'}'. "
                f"Requested app to link to has input_type '{application.input_type}'."
            )
    if not models:
        raise InvalidRequest(
            "Please provide the name of the model that you want to link to the application "
            f"'{name}'"
        )
    only_one = application.policy == SINGLE_MODEL_POLICY
    if only_one and len(models) > 1:
        raise InvalidRequest(
            "Applications must be linked with at most one model. "
            f"Attempted to add links to {len(models)} models."
        )
    for place, model in enumerate(models):
        if model in application.models or model in models[:place]:
            raise InvalidRequest(f"The model with name '{model}' is already linked to '{name}'")
    if only_one and application.models:
        raise InvalidRequest(
            f"A model with name {application.models[0]} is already linked to '{name}'."
        )
    service.applications.link(name, models)
    if only_one:
        return f"Successfully linked model with name '{models[0]}' to application '{name}'"
    quoted = ", ".join(f"'{model}'" for model in models)
    return f"Successfully linked models with names {quoted} to application '{name}'"


def _input_types(service: ClipperService, name: str) -> Sequence[str] | None:
    """Return a model's registered input type, else all that fit its signature, or None if unknown.

    Unlike in Clipper, models may be served without being registered.
    """
    version = service.current_versions().get(name)
    found = None if version is None else service.model(name, version)
    return service.served_input_types(name) if found is None else (found.input_type,)


def _delete_model_links(service: ClipperService, fields: JsonFields) -> str:
    name, models = fields.string("app_name"), fields.strings("model_names")
    application = _find(service, name, f"No app with name {name} exists.")
    for model in models:
        if model not in application.models:
            raise InvalidRequest(
                f"Cannot remove nonexistent link between app {name} and model {model}"
            )
    service.applications.unlink(name, list(dict.fromkeys(models)))
    return "Success!"


def _get_linked_models(service: ClipperService, fields: JsonFields) -> list[str]:
    name = fields.string("app_name")
    return list(_find(service, name, f"No application with name '{name}' exists.").models)


def _get_state(service: ClipperService, fields: JsonFields) -> str:
    name, user = fields.string("app_name"), fields.user("uid")
    _find(service, name, f"No application with name '{name}' exists.")
    return json.dumps(service.applications.state(name, user))


COMMANDS: dict[str, tuple[Command, str]] = {
    "/add_app": (
        _add_app,
        (
            f'{{ "name" := string, "input_type" := {INPUT_TYPE}, "default_output" := string, '
            '"latency_slo_micros" := int, and optional: "policy" := string, "options" := {}, "costs" := {}, '
            '"task" := {}, "contexts" := "shared" | "user", "most_users" := int, "confidence_threshold" := float, '
            '"suspicious_threshold" := float }'
        ),
    ),
    "/delete_app": (_delete_app, '{ "name" := string }'),
    "/add_model_links": (_add_model_links, _LINKS),
    "/delete_model_links": (_delete_model_links, _LINKS),
    "/get_linked_models": (_get_linked_models, '{ "app_name" := string }'),
    "/get_all_applications": (_get_all_applications, VERBOSE),
    "/get_application": (_get_application, '{ "name" := string }'),
    "/get_state": (_get_state, '{ "app_name" := string, "uid" := int }'),
}
"""Path below `/admin` -> the command and its body's schema."""
