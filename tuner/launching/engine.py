"""Interface between the tuner and any engine; it starts no processes.

`engine_process` implements it for Luthier, `command_engine` for any server that restarts for each
configuration, and `url_engine` for a running server.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from serving.tensors import shapes
from serving.values import Signature
from tuner.errors import TunerError
from tuner.launching.replica_facts import ReplicaFacts
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts that an engine reports about itself."""

    model: str
    kind: str
    signature: Signature | None
    limits: str
    """Whether limits hold and of what; after a colon, the reason if they do not."""
    device: str | None = None
    """Device of the model, `cpu` or `cuda`; None if unknown or not fixed."""
    is_here: bool = True
    """Whether the engine runs on this machine, so that its energy counts."""
    engine: str = OUR_ENGINE
    max_model_mb: float | None = None
    """Memory of the largest model on shared replicas in MiB, or None for a single model."""

    def told_signature(self) -> Signature:
        """Return the signature, or raise TunerError if it is unknown."""
        if self.signature is None:
            raise TunerError(f"the engine does not report the inputs of {self.model}")
        return self.signature

    @property
    def unbatched_reason(self) -> str:
        """Reason why the model is unbatched; empty if it is batched or unknown."""
        return "" if self.signature is None else shapes.why_unbatched(self.signature)


def kind_of_limits(limits: str) -> str:
    """Return `EngineInfo.limits` without its reason, which differs from start to start."""
    return limits.partition(":")[0]


class RunningEngine(Protocol):
    """Running engine, whose methods block and must be called from one thread."""

    @property
    def host(self) -> str:
        """Host that accepts requests."""

    @property
    def port(self) -> int:
        """Port that accepts requests."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the engine, other than those in `replica_facts`."""

    def apply(self, configuration: Configuration) -> float:
        """Apply a configuration, and return the seconds until it is ready.

        Raises:
            LaunchFailed: the change failed; `is_running` says whether the engine still serves.
        """

    def describe(self) -> EngineInfo:
        """Describe the engine and its model.

        Raises:
            LaunchFailed: the engine gives no description.
        """

    def replica_facts(self) -> ReplicaFacts:
        """Return resource use and deaths of the engine's processes.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """

    def is_running(self) -> bool:
        """Whether the engine can take another configuration."""

    def last_words(self) -> str:
        """Return how the engine ended, with its last line of output."""

    def stop(self) -> None:
        """End the engine, if it is running."""


class Launcher(Protocol):
    """Launcher of engines of one kind."""

    @property
    def why_not_interleaved(self) -> str | None:
        """Reason why two engines cannot run at once, or None if they can."""

    @property
    def is_restarted(self) -> bool:
        """Whether each configuration gets a new process, which has to settle."""

    def start(self, configuration: Configuration | None) -> RunningEngine:
        """Start an engine, with its own defaults if `configuration` is None.

        Raises:
            UsageError, LaunchFailed: it does not start; the message is the reason it printed.
        """

    def close(self) -> None:
        """Remove what stopped engines leave behind."""
