"""Limits of a whole server, as those of a pod: of the gateway and all its replicas together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from serving.errors import LimitsUnavailable
from serving.system import process_identity
from serving.system.cgroups import manager
from serving.system.cgroups.cgroup import ControlGroup
from serving.system.cgroups.manager import CgroupManager
from tuner.errors import LaunchFailed
from tuner.metrics import server_resources
from tuner.metrics.server_resources import ServerResources
from tuner.values.configuration import Value


class PodLimiter:
    """Limits the servers of a launcher, each as a pod."""

    def __init__(self, kind: str, *, cores: int) -> None:
        """Prepare for servers of a model kind on a machine with `cores`; make nothing yet."""
        self._kind = kind
        self._cores = cores
        self._groups = CgroupManager(process_identity.this_process().new_name())
        self._count = 0

    def limit(self, configuration: Mapping[str, Value]) -> Pod:
        """Return a new pod with the limits of a configuration.

        Raises:
            LaunchFailed: `limits`, if this machine enforces none.
        """
        if not self._count:
            manager.cleanup_stale()
            self._groups.open()
        self._count += 1
        try:
            group = self._groups.group(self._count)
            if group is None:
                raise LimitsUnavailable(f"limits of a whole server are {self._groups.support.text}")
            pod = Pod(self, group)
            try:
                pod.limit(self.needed_by(configuration))
            except BaseException:
                pod.close()
                raise
        except LimitsUnavailable as error:
            raise LaunchFailed("limits", str(error)) from error
        return pod

    def needed_by(self, configuration: Mapping[str, Value]) -> ServerResources:
        """Return the resources of a configuration's server."""
        return server_resources.needed_by(configuration, self._kind, cores=self._cores)

    def remove(self, group: ControlGroup) -> None:
        """End all processes of a group, and remove it."""
        self._groups.kill(group)

    def close(self) -> None:
        """Remove all groups."""
        if self._count:
            self._groups.close()


class Pod:
    """Control group of one whole server."""

    def __init__(self, limiter: PodLimiter, group: ControlGroup) -> None:
        self._limiter = limiter
        self._group = group
        self._limits: ServerResources | None = None
        self._kills_before = 0
        """Processes killed for memory until the last change, under an earlier configuration."""

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

    def limit(self, limits: ServerResources | None) -> None:
        """Set limits, or none; raise LimitsUnavailable if the kernel refuses."""
        if limits is None:
            self._group.set_limits(cpu=None, memory_mb=None)
        else:
            self._group.set_limits(cpu=limits.cpu, memory_mb=limits.memory_mb)
        self._limits = limits

    @contextlib.contextmanager
    def changing(self, configuration: Mapping[str, Value]) -> Iterator[None]:
        """Let the server change to a configuration inside the block, and limit it by that one then.

        Inside, it has no limits, since new replicas are ready before the old ones leave. After an
        error, the limits before are in force again.

        Raises:
            LaunchFailed: `oom`, if the changed server uses more memory than its limit.
        """
        before, after = self._limits, self._limiter.needed_by(configuration)
        self._kills_before = self._group.oom_kills()
        self.limit(None)
        try:
            yield
        except BaseException:
            with contextlib.suppress(LimitsUnavailable):  # the error before it says more
                self.limit(before)
            raise
        try:
            self.limit(after)
        except LimitsUnavailable as error:
            used_mb = self._group.usage().peak_memory_mb
            peak = "" if used_mb is None else f" (peak {used_mb:.0f} MiB)"
            raise LaunchFailed(
                "oom",
                f"the server uses more memory{peak} than the {after.memory_mb} MiB of its "
                "limit as a whole; raise replica.memory_mb",
            ) from error

    def oom_text(self) -> str | None:
        """Return which processes the kernel killed for memory since the last change, or None."""
        memory_mb = None if self._limits is None else self._limits.memory_mb
        knob = "replica.memory_mb"
        return oom_text(self._group, memory_mb, knob=knob, kills_before=self._kills_before)

    def close(self) -> None:
        """End all that is left in the pod, and remove it."""
        self._limiter.remove(self._group)


def oom_text(
    group: ControlGroup, memory_mb: int | None, *, knob: str, kills_before: int = 0
) -> str | None:
    """Return which processes of a whole server the kernel killed for memory, or None if none.

    Args:
        memory_mb: the server's limit, if it has one.
        knob: what to raise.
        kills_before: number of killed processes that are not told.
    """
    kills = group.oom_kills() - kills_before
    if kills <= 0:
        return None
    peak_mb = group.usage().peak_memory_mb
    facts = [] if peak_mb is None else [f"peak {peak_mb:.0f} MiB"]
    if memory_mb is not None:
        facts.append(f"limit {memory_mb} MiB")
    processes = "a process" if kills == 1 else f"{kills} processes"
    return (
        f"the kernel killed {processes} of the server for memory ({', '.join(facts)}); raise {knob}"
    )
