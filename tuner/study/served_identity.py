"""Check that a running server serves a study's model with a certain configuration.

The inference port tells the model's signature and, by Triton's model configuration, some settings;
the admin port, where it is reachable, tells all of them, also those that the study did not search.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.settings import SETTINGS
from serving.system.secret_variables import ADMIN_TOKEN_VARIABLE
from serving.values import Signature
from tuner.advice import Advice
from tuner.engines.description import UrlEngine
from tuner.errors import LaunchFailed, UsageError
from tuner.export import container, kuberay
from tuner.export.export_input import ExportInput
from tuner.launching import apply, readiness
from tuner.launching.admin import AdminClient
from tuner.launching.readiness import ReadinessCheck
from tuner.load_generator.endpoint import parse_url
from tuner.values.configuration import Configuration
from tuner.values.study_record import StudyRecord

TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 1 << 20
OF_MACHINE = frozenset({"accelerator.clock_mhz", "accelerator.share"})
"""Knobs that no server in a container sets."""
OF_WHOLE_SERVER = ("server.", "cluster.")
"""Prefixes of settings of the whole server, which exports leave to the place."""
LIMITS = "the limits of its container"
Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedIdentity:
    """What of a running server was compared with a study, and what could not be."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


def check(
    engine: UrlEngine,
    *,
    model: str,
    signature: Signature | None,
    configuration: Configuration,
    exported: Sequence[Settings],
    admin_url: str | None = None,
) -> ServedIdentity:
    """Compare a running server with a study.

    Args:
        model: name of the model, unless the engine's URL has one.
        signature: the study's signature of the model, or None if it is unknown.
        exported: see `settings_of_exports`.
        admin_url: address of the admin port, whose token is in `LUTHIER_ADMIN_TOKEN`.

    Raises:
        UsageError: the server has another model or configuration, or does not answer as it should.
    """
    checked, unchecked = [], []
    told = _signature(engine, model)
    if told is not None and signature is not None:
        _compare_signatures(engine.url, signature, told)
        checked.append("the model's inputs and outputs")
    else:
        unchecked.append("the model")
    if admin_url is None:
        settings, where = _told_by_config(engine, model), "its model configuration"
        same = same_settings(settings, configuration, where)
    else:
        settings = _told_by_admin(admin_url, engine.request.model or model)
        same = same_settings(settings, export_of(settings, exported), admin_url)
    if searched := [name for name in same if name in configuration]:
        checked.append(", ".join(searched))
    if admin_url is not None:
        checked.append("all other settings of its model")
    others = [name for name in configuration if name not in same]
    if others:
        unchecked.append(", ".join(others))
    return ServedIdentity(checked=tuple(checked), unchecked=(*unchecked, LIMITS))


def _signature(engine: UrlEngine, model: str) -> Signature | None:
    try:
        return readiness.told_signature(engine.host, engine.port, model, engine.request)
    except LaunchFailed as error:
        name = engine.request.model or model
        raise UsageError(f"{engine.url} does not serve the model {name}: {error.text}") from error


def _compare_signatures(url: str, wanted: Signature, told: Signature) -> None:
    for what in ("inputs", "outputs"):
        one, other = _tensors(wanted, what), _tensors(told, what)
        if one != other:
            raise UsageError(
                f"{url} serves another model: its {what} are {other}, those of the study's "
                f"model {one}"
            )


def _tensors(signature: Signature, what: str) -> str:
    specs = getattr(signature, what)
    return ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in specs)


def settings_of_exports(record: StudyRecord, found: Advice) -> tuple[Settings, ...]:
    """Return all settings of a study's model, as measured, and as each kind of export serves it."""
    subject = ExportInput(record=record, advice=found, place=pathlib.PurePath())
    defaults = {
        name: setting.default
        for name, setting in SETTINGS.items()
        if not name.startswith(OF_WHOLE_SERVER)
    }
    common = {**defaults, **record.told, **apply.to_settings(found.configuration)}
    measured = {"replica.spawner": record.spawner, "replica.limits": record.limits}
    kinds = (measured, container.ONE_CONTAINER, kuberay.settings_of(subject))
    return tuple({**common, **one} for one in kinds)


def export_of(told: Settings, exported: Sequence[Settings]) -> Settings:
    """Return the settings of the kind of export that a server is, by how it starts and limits replicas."""
    by = ("replica.spawner", "replica.limits")
    alike = (one for one in exported if all(one[name] == told.get(name) for name in by))
    return next(alike, exported[0])


def same_settings(told: Settings, expected: Settings, where: str) -> tuple[str, ...]:
    """Return the names of settings that a server has as expected.

    Raises:
        UsageError: it has one with another value.
    """
    same = []
    for name, wanted in expected.items():
        if name not in told or name in OF_MACHINE:
            continue
        if not _is_equal(told[name], wanted):
            raise UsageError(
                f"the server has another configuration: {name} is {told[name]} by {where}, "
                f"{wanted} in the study's; apply the export again, or name its trial (--trial N)"
            )
        same.append(name)
    return tuple(same)


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _told_by_config(engine: UrlEngine, model: str) -> dict[str, Any]:
    """Return settings from Triton's model configuration, or none if the server has no such page."""
    if engine.request.protocol != "open-inference":
        return {}
    path = f"{engine.request.metadata_path(model)}/config"
    check = ReadinessCheck(path=path, headers=engine.request.headers)
    try:
        status, data = readiness.send(
            engine.host, engine.port, check, TIMEOUT_S, max_bytes=MAX_CONFIG_BYTES
        )
        found = json.loads(data) if status == http.HTTPStatus.OK else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return dict(_from_config(found)) if isinstance(found, dict) else {}


def _from_config(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings by their names; what is of another form is left out."""
    groups = found.get("instance_group")
    if isinstance(groups, list) and all(isinstance(one, dict) for one in groups):
        counts = [one.get("count") for one in groups]
        if counts and all(isinstance(count, int) for count in counts):
            yield "replica.count", sum(counts)
    size, batching = found.get("max_batch_size"), found.get("dynamic_batching")
    if isinstance(size, int) and size > 0:
        yield "batching.max_size", size
    if isinstance(batching, dict):
        delay = batching.get("max_queue_delay_microseconds", 0)
        if str(delay).isdecimal():  # Triton writes 64-bit numbers as strings
            yield "batching.timeout_us", int(delay)


def _told_by_admin(url: str, model: str) -> dict[str, Any]:
    where = parse_url(url)
    client = AdminClient(where.host, where.port, token=os.environ.get(ADMIN_TOKEN_VARIABLE))
    try:
        return of_model(client.settings()["settings"], model)
    except (LaunchFailed, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"--admin {url}: {error}; its token is expected in {ADMIN_TOKEN_VARIABLE}"
        ) from error


def of_model(settings: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return a model's settings by name, from those of a server in the form of a settings file."""
    own = settings.get("models", {}).get(model, {})
    found = {}
    for name in SETTINGS:
        group, _, key = name.partition(".")
        part = {**settings.get(group, {}), **own.get(group, {})}
        if key in part:
            found[name] = part[key]
    return found
