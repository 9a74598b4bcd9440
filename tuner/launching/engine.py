"""What the tuner needs of an engine, whichever it is: started, given configurations, asked, ended.

`engine_process` is the serving core, `command_engine` any server that is started anew for each
configuration, `url_engine` a running one. Protocols and a value; no processes.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from serving import shapes
from serving.values import Signature
from tuner.errors import TunerError
from tuner.launching.replica_facts import ReplicaFacts
from tuner.values import OUR_ENGINE, Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the engine says of itself."""

    model: str
    version: str
    kind: str
    signature: Signature | None
    """None where the engine does not tell."""
    limits: str
    device: str | None = None
    """Where the model runs, `cpu` or `cuda`; None: it decides for itself, or does not say."""
    is_here: bool = True
    """Whether it runs on this machine, so that this machine's energy is its."""
    engine: str = OUR_ENGINE
    """What reports call the engine."""
    largest_mb: float | None = None
    """MiB of the largest of the models that share its replicas; None of one model."""

    def told_signature(self) -> Signature:
        """The signature, for what cannot do without.

        Raises:
            TunerError: the engine does not tell.
        """
        if self.signature is None:
            raise TunerError(f"the engine does not tell what {self.model} takes")
        return self.signature

    @property
    def whole(self) -> str:
        """Why it is served whole, one request at a time; empty: it is not, or the engine does not tell."""
        return "" if self.signature is None else shapes.why_whole(self.signature)


class Engine(Protocol):
    """One running engine; blocking, from one thread."""

    @property
    def host(self) -> str:
        """Host that answers requests."""
        ...

    @property
    def port(self) -> int:
        """Port that answers requests."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes beside those that `replica_facts` has."""
        ...

    def apply(self, configuration: Configuration) -> float:
        """Launch a configuration; returns the seconds until it was ready.

        Raises:
            LaunchFailed: it could not be launched; `is_running` says whether anything still serves.
        """
        ...

    def served(self) -> Served:
        """What it serves.

        Raises:
            LaunchFailed: it does not tell.
        """
        ...

    def replica_facts(self) -> ReplicaFacts:
        """What is known of its processes, and which of them died.

        Raises:
            LaunchFailed: the engine is gone (cause `crash`).
        """
        ...

    def is_running(self) -> bool:
        """Whether it can be given another configuration."""
        ...

    def last_words(self) -> str:
        """How it ended, and the last line that it wrote."""
        ...

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        ...


class Launcher(Protocol):
    """Starts engines of one kind."""

    @property
    def why_alone(self) -> str | None:
        """Why two of them are not up at once; None: they can be."""
        ...

    @property
    def is_restarted(self) -> bool:
        """Whether each configuration is served by a process that was started for it, and has to settle."""
        ...

    def start(self, configuration: Configuration | None) -> Engine:
        """Start an engine with a configuration; None: its own defaults.

        Raises:
            WrongUse, LaunchFailed: it does not start, with the engine's own line.
        """
        ...

    def close(self) -> None:
        """Remove what outlives engines that were stopped."""
        ...
