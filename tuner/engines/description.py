"""Descriptions of other engines: how to start, configure, call and stop them.

Pure values, which `tuner.engines.file` reads and `tuner.launching` uses.
"""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Literal

from tuner.engines import template

Protocol = Literal["open-inference", "tensorflow-serving", "raw"]
PROTOCOLS: tuple[Protocol, ...] = ("open-inference", "tensorflow-serving", "raw")
READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 2.0
"""Time from the stop signal to SIGKILL; a measured server has no work left to finish."""
COPY = "engine.yaml"
"""Name of the engine file in a study folder."""
SCENARIO_COPY = "scenario.yaml"
"""Name of the scenario file in a study folder."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestFormat:
    """Format of the requests that an engine takes."""

    protocol: Protocol
    model: str | None = None
    """Model name in paths; None for the name in the study."""
    path: str | None = None
    """Request path; None for the protocol's default path."""
    method: str = "POST"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: pathlib.Path | None = None
    """File with the body of a raw request; None for the study's payload."""
    is_tensor: bool = False
    """Whether a raw request is the little-endian bytes of one input."""
    answer: str | None = None
    """Datatype of the numbers in a raw response, or None if unknown."""

    def infer_path(self, model: str) -> str:
        """Return the request path for the study's model."""
        if self.path is not None:
            return self.path
        name = urllib.parse.quote(self.model or model, safe="")
        if self.protocol == "tensorflow-serving":
            return f"/v1/models/{name}:predict"
        return f"/v2/models/{name}/infer"

    def metadata_path(self, model: str) -> str:
        """Return the path of the model's metadata (Open Inference Protocol)."""
        return self.infer_path(model).removesuffix("/infer")

    def ready_path(self) -> str | None:
        """Return the path of the readiness check, or None if a request must replace it."""
        if self.protocol != "open-inference":
            return None
        return f"{(self.path or '/v2/').partition('/v2/')[0]}/v2/health/ready"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandEngine:
    """Engine whose server the tuner restarts for each configuration."""

    name: str
    file: pathlib.Path
    """Absolute path from which the engine file was first read."""
    text: str
    command: tuple[str, ...]
    """Templates of the program and its arguments."""
    environment: Mapping[str, str]
    """Mapping from variable to template, in addition to the tuner's variables."""
    files: Mapping[str, str]
    """Mapping from path in the launch folder to a template of the file's content."""
    directory: str
    """Template of the working folder."""
    ready_path: str | None
    """Path of the readiness check; None for the protocol's path, or else the study's request."""
    ready_timeout_s: float
    request: RequestFormat
    stop_signal: signal.Signals
    stop_grace_s: float
    defaults: Mapping[str, str]
    """Default of each knob, as text."""
    python: str = sys.executable
    """Value of `{python}`."""
    label: str

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the placeholders in all templates."""
        return template.names(self._templates())

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of the knobs in the templates."""
        return tuple(name for name in self.places if not template.is_built_in(name))

    def _templates(self) -> Iterator[str]:
        yield from self.command
        yield from self.environment.values()
        yield from self.files.values()
        yield self.directory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UrlEngine:
    """Running server that a hook configures."""

    url: str
    host: str
    port: int
    hook: tuple[str, ...]
    """Program and arguments, run in the tuner's working folder; empty without a hook."""
    hook_timeout_s: float
    request: RequestFormat
    ready_path: str | None = None
    ready_timeout_s: float = READY_TIMEOUT_S

    @property
    def label(self) -> str:
        """Name of the engine in reports."""
        return f"url:{self.url}"
