"""What is known of another engine: how it is started or changed, asked, found ready and stopped.

Values only. `tuner.engines.file` makes them from a YAML file, `tuner.launching` acts on them,
`tuner.inputs` makes requests of them.
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
"""Between the stop signal and SIGKILL: a server that is only measured has nothing to finish."""
COPY = "engine.yaml"
"""The engine file in a study's folder."""
SCENARIO_COPY = "scenario.yaml"
"""The scenario in a study's folder."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """How the engine is asked."""

    protocol: Protocol
    model: str | None = None
    """Name of the model in paths; None: that of the study's model."""
    path: str | None = None
    """Path of a request; None: the protocol's own."""
    method: str = "POST"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: pathlib.Path | None = None
    """Of a raw request; None: the study's payload."""
    is_tensor: bool = False
    """A raw request is the bytes of one input of the model, little-endian."""
    answer: str | None = None
    """Datatype of the numbers that a raw answer is made of; None: not known."""

    def infer_path(self, model: str) -> str:
        """Path that answers a request, for the study's model."""
        if self.path is not None:
            return self.path
        name = urllib.parse.quote(self.model or model, safe="")
        if self.protocol == "tensorflow-serving":
            return f"/v1/models/{name}:predict"
        return f"/v2/models/{name}/infer"

    def metadata_path(self, model: str) -> str:
        """Path of the model's metadata, in the Open Inference Protocol."""
        return self.infer_path(model).removesuffix("/infer")

    def ready_path(self) -> str | None:
        """Path that tells that the server is ready; None: only a request does."""
        if self.protocol != "open-inference":
            return None
        return f"{(self.path or '/v2/').partition('/v2/')[0]}/v2/health/ready"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandEngine:
    """A server that the tuner starts anew for each configuration."""

    name: str
    file: pathlib.Path
    """Absolute; where it was first read."""
    text: str
    """What the file holds."""
    command: tuple[str, ...]
    """Program and arguments, templates."""
    environment: Mapping[str, str]
    """Variables beside those of the tuner -> templates."""
    files: Mapping[str, str]
    """Path in the launch's folder -> template of the text."""
    directory: str
    """Template of the folder in which the command is started."""
    ready_path: str | None
    """None: the protocol's, else the study's request."""
    ready_timeout_s: float
    request: RequestForm
    stop_signal: signal.Signals
    stop_grace_s: float
    defaults: Mapping[str, str]
    """What stands in the place of each knob that nothing else gives a value."""
    python: str = sys.executable
    """What stands for `{python}`."""
    label: str
    """What reports call it."""

    @property
    def places(self) -> tuple[str, ...]:
        """Names in all templates."""
        return template.names(self._templates())

    @property
    def knobs(self) -> tuple[str, ...]:
        """Knobs that the templates name."""
        return tuple(name for name in self.places if not template.is_built_in(name))

    def _templates(self) -> Iterator[str]:
        yield from self.command
        yield from self.environment.values()
        yield from self.files.values()
        yield self.directory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UrlEngine:
    """A running server that a hook gives its configurations."""

    url: str
    host: str
    port: int
    hook: tuple[str, ...]
    """Program and arguments, started in the tuner's working folder; empty: the server stays as it is."""
    hook_timeout_s: float
    request: RequestForm
    ready_path: str | None = None
    ready_timeout_s: float = READY_TIMEOUT_S

    @property
    def label(self) -> str:
        """What reports call it."""
        return f"url:{self.url}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEngine:
    """The serving core with all the models of a scenario, which share replicas."""

    file: pathlib.Path
    """Absolute; where the scenario was first read."""
    text: str
    """What the file holds."""


OtherEngine = CommandEngine | UrlEngine | ScenarioEngine
"""What is not the serving core with one model."""
