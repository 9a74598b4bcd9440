"""Interface of the tuner to any engine, without processes.

`engine_process` is Luthier's own engine, `command_engine` any server restarted for each
configuration, and `url_engine` a running server.
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
    """Facts that an engine reports of itself."""

    model: str
    kind: str
    signature: Signature | None
    """None if unknown."""
    limits: str
    device: str | None = None
    """Device of the model, `cpu` or `cuda`; None: unknown or its own choice."""
    is_here: bool = True
    """Whether it runs on this machine, whose energy then counts."""
    engine: str = OUR_ENGINE
    """Engine's name in reports."""
    max_model_mb: float | None = None
    """Largest of the models on shared replicas, in MiB; None for one model."""

    def told_signature(self) -> Signature:
        """Return the signature; an unknown one raises TunerError."""
        if self.signature is None:
            raise TunerError(f"the engine does not report the inputs of {self.model}")
        return self.signature

    @property
    def unbatched_reason(self) -> str:
        """Why the model is unbatched; empty if batched or unknown."""
        return "" if self.signature is None else shapes.why_unbatched(self.signature)


class RunningEngine(Protocol):
    """One running engine; blocking, from one thread."""

    @property
    def host(self) -> str:
        """Host for requests."""

    @property
    def port(self) -> int:
        """Port for requests."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes besides those in `replica_facts`."""

    def apply(self, configuration: Configuration) -> float:
        """Apply a configuration, and return the seconds until it was ready.

        Raises:
            LaunchFailed: it failed; `is_running` is whether the engine still serves.
        """

    def describe(self) -> EngineInfo:
        """Describe the engine and its model.

        Raises:
            LaunchFailed: no description was found.
        """

    def replica_facts(self) -> ReplicaFacts:
        """Return resource use and deaths of its processes.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """

    def is_running(self) -> bool:
        """Whether it can take another configuration."""

    def last_words(self) -> str:
        """Return how it ended, with its last line."""

    def stop(self) -> None:
        """End it, if it still runs."""


class Launcher(Protocol):
    """Launcher for engines of one kind."""

    @property
    def why_not_interleaved(self) -> str | None:
        """Why two engines cannot run at once; None: they can."""

    @property
    def is_restarted(self) -> bool:
        """Whether each configuration gets a new process, which has to settle."""

    def start(self, configuration: Configuration | None) -> RunningEngine:
        """Start an engine; None: its own defaults.

        Raises:
            UsageError, LaunchFailed: it does not start, with its own line.
        """

    def close(self) -> None:
        """Remove what outlives stopped engines."""
