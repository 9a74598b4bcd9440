"""Limits of a whole server, as those of a pod: of the gateway and all its replicas together.

Who deploys to Kubernetes limits the pod, not the replicas in it, which may use what others leave.
The sums are those of the exports (`tuner.export.container`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from serving.errors import LimitsUnavailable
from serving.settings import SETTINGS
from serving.system import process_identity
from serving.system.cgroups import manager
from serving.system.cgroups.cgroup import ControlGroup
from serving.system.cgroups.manager import CgroupManager
from tuner.errors import LaunchFailed
from tuner.values.configuration import Value

GATEWAY_CPU = 1.0
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequirements:
    """Resources of one server, with their calculation in words."""

    cpu: float
    memory_mb: int | None
    lines: tuple[str, ...]


def needs(
    configuration: Mapping[str, Value], kind: str, *, cores: int | None, has_cache: bool = True
) -> ResourceRequirements:
    """Return the resources for the gateway and all replicas.

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
        return ResourceRequirements(cpu=cpu, memory_mb=None, lines=tuple(lines))
    own_mb = GATEWAY_MB + RUNTIME_MB.get(kind, 0) + cache_mb
    memory_mb = int(count * limit_mb + own_mb + TEMPORARY_MB)
    cached = f" (its cache {cache_mb})" if cache_mb else ""
    lines.append(
        f"Memory: {count:g} x {limit_mb:g} of the replicas + {own_mb} of gateway and template{cached} "
        f"+ {TEMPORARY_MB} of /tmp = {memory_mb} MiB."
    )
    return ResourceRequirements(cpu=cpu, memory_mb=memory_mb, lines=tuple(lines))


def _number(configuration: Mapping[str, Value], name: str) -> float | int | None:
    value = configuration.get(name, SETTINGS[name].default)
    assert value is None or isinstance(value, int | float)
    return value


class PodLimiter:
    """Limits the servers of a launcher, each as a pod."""

    def __init__(self, kind: str, *, cores: int) -> None:
        """Prepare for servers of a model kind; make nothing yet."""
        self._kind = kind
        self._cores = cores
        self._groups = CgroupManager(process_identity.this_process().new_name())
        self._count = 0

    def limit(self, configuration: Mapping[str, Value]) -> Pod:
        """Return a new pod with the limits of a configuration.

        Raises:
            LaunchFailed: this machine has no limits.
        """
        if not self._count:
            manager.cleanup_stale()
            self._groups.open()
        self._count += 1
        try:
            group = self._groups.group(self._count)
        except LimitsUnavailable as error:
            raise LaunchFailed("limits", str(error)) from error
        if group is None:
            text = f"the limits of a pod are {self._groups.support.text}"
            raise LaunchFailed("limits", text)
        pod = Pod(group, self._groups, self._kind, self._cores)
        try:
            pod.limit(configuration)
        except BaseException:
            pod.close()
            raise
        return pod

    def close(self) -> None:
        """Remove all groups."""
        if self._count:
            self._groups.close()


class Pod:
    """Control group of one whole server."""

    def __init__(self, group: ControlGroup, groups: CgroupManager, kind: str, cores: int) -> None:
        self._group = group
        self._groups = groups
        self._kind = kind
        self._cores = cores
        self._cpu = 0.0
        self._memory_mb: int | None = 0

    def join(self, pid: int) -> None:
        """Put a process into the pod, which has started no other yet.

        Raises:
            LaunchFailed: the kernel refuses.
        """
        try:
            for file in self._group.procs_files:
                file.write_text(str(pid), encoding="ascii")
        except OSError as error:
            text = f"the server cannot join its control group: {error}"
            raise LaunchFailed("limits", text) from error

    def limit(self, configuration: Mapping[str, Value]) -> None:
        """Set the limits of a configuration, or raise LaunchFailed."""
        found = needs(configuration, self._kind, cores=self._cores)
        self._set(found.cpu, found.memory_mb)

    def widen(self, configuration: Mapping[str, Value]) -> None:
        """Raise the limits to those of a configuration, where they are higher, or raise LaunchFailed."""
        found = needs(configuration, self._kind, cores=self._cores)
        memory_mb = None
        if found.memory_mb is not None and self._memory_mb is not None:
            memory_mb = max(found.memory_mb, self._memory_mb)
        self._set(max(found.cpu, self._cpu), memory_mb)

    def _set(self, cpu: float, memory_mb: int | None) -> None:
        try:
            self._group.set_limits(cpu=cpu, memory_mb=memory_mb)
        except LimitsUnavailable as error:
            raise LaunchFailed("limits", str(error)) from error
        self._cpu, self._memory_mb = cpu, memory_mb

    def close(self) -> None:
        """End all that is left in the pod, and remove it."""
        self._groups.kill(self._group)
