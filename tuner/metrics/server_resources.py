"""Resources of a whole server: the gateway with all its replicas.

Who deploys to Kubernetes or Compose limits the container, not the replicas in it, each of which may
use what the others leave. Exports ask for these sums, and studies with `--limits pod` measure in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from serving.settings import SETTINGS
from tuner.values.configuration import Value

GATEWAY_CPU = 1.0
"""Cores for the gateway, a single-threaded process."""
GATEWAY_MB = 256
"""Memory for the gateway and fork server (75 to 140 MiB) and for requests."""
RUNTIME_MB = {
    "torch": 512,
    "tensorflow": 768,
    "xgboost": 128,
    "lightgbm": 128,
    "catboost": 128,
    "mlflow": 256,
}
TEMPORARY_MB = 64
"""Memory for `/tmp`, which a container without a disk of its own has in memory."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerResources:
    """Resources of one server, with their calculation in words."""

    cpu: float
    """Cores."""
    memory_mb: int | None
    """MiB, or None if the configuration limits no memory."""
    lines: tuple[str, ...]


def needed_by(
    configuration: Mapping[str, Value], kind: str, *, cores: int | None, has_cache: bool = True
) -> ServerResources:
    """Return what the gateway and all replicas of a configuration need together.

    Args:
        kind: kind of the model.
        cores: cores of the machine of the study, which no sum exceeds; None if unknown.
        has_cache: whether the server has a prediction cache.
    """
    count, each = _number(configuration, "replica.count"), _number(configuration, "replica.cpu")
    assert count is not None
    why = ""
    if each is None:
        each = _number(configuration, "replica.threads")
        assert each is not None
        why = " (a core for each thread, as the study sets no limit)"
    cpu = count * each + GATEWAY_CPU
    replicas = f"{count:g} x {each:g}{why} of the replicas"
    lines = [f"CPU: {replicas} + {GATEWAY_CPU:g} of the gateway = {cpu:g} cores."]
    if cores is not None and cpu > cores:
        cpu = float(cores)
        lines.append(f"The study's machine had {cores}, so no more were measured.")
    limit_mb = _number(configuration, "replica.memory_mb")
    cache_mb = int(_number(configuration, "cache.capacity_mb") or 0) if has_cache else 0
    if limit_mb is None:
        lines.append("Memory: the study sets no limit, so none is set here.")
        return ServerResources(cpu=cpu, memory_mb=None, lines=tuple(lines))
    own_mb = GATEWAY_MB + RUNTIME_MB.get(kind, 0) + cache_mb
    memory_mb = int(count * limit_mb + own_mb + TEMPORARY_MB)
    cached = f" (its cache {cache_mb})" if cache_mb else ""
    lines.append(
        f"Memory: {count:g} x {limit_mb:g} of the replicas + {own_mb} of gateway and template{cached} "
        f"+ {TEMPORARY_MB} of /tmp = {memory_mb} MiB."
    )
    return ServerResources(cpu=cpu, memory_mb=memory_mb, lines=tuple(lines))


def _number(configuration: Mapping[str, Value], name: str) -> float | int | None:
    value = configuration.get(name, SETTINGS[name].default)
    assert value is None or isinstance(value, int | float)
    return value
