"""Lookup of a study's target: Luthier, an engine with a file, a running server, or a scenario."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import shlex
from collections.abc import Callable
from typing import Generic, TypeVar

from serving.model_spec import ModelSpec
from serving.zoo import bundled
from tuner.engines import engine_lookup
from tuner.engines import file as engine_file
from tuner.engines.description import (
    COPY,
    READY_TIMEOUT_S,
    CommandEngine,
    RequestFormat,
    UrlEngine,
)
from tuner.errors import UsageError
from tuner.evaluation import request_source
from tuner.evaluation.scenarios import files as scenario_files
from tuner.launching.command_engine import CommandLauncher
from tuner.launching.engine import EngineInfo, Launcher
from tuner.launching.readiness import ReadinessCheck
from tuner.launching.url_engine import UrlLauncher
from tuner.load_generator.endpoint import parse_url
from tuner.load_generator.payloads import Payloads
from tuner.settings.target import TargetSettings
from tuner.space import files, knob_schema
from tuner.space.files import SpaceFile
from tuner.space.space import SearchSpace
from tuner.study import problem
from tuner.study.target import LuthierTarget, ScenarioTarget, Target
from tuner.values.configuration import Configuration

RUNNING_TIMEOUT_S = 5.0
"""Timeout for the readiness of a server that should already be running."""
_TFS_PATH = re.compile(r".*/v1/models/(?P<model>[^/?:]+)(/versions/\d+)?:predict")
Engine = TypeVar("Engine", CommandEngine, UrlEngine)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OtherEngine(Target, Generic[Engine]):
    engine: Engine

    def payloads(self, settings: TargetSettings, told: EngineInfo, *, seed: int) -> Payloads:
        """Return the requests in the engine's format."""
        request = self.engine.request
        if request.protocol != "open-inference":
            return request_source.plain_requests(request, settings, self.spec)
        found = problem.payloads_of(settings, self.spec, told, seed=seed)
        return dataclasses.replace(
            found,
            path=request.infer_path(self.spec.name),
            headers={**found.headers, **request.headers},
        )

    def _sign(self, settings: TargetSettings) -> ReadinessCheck:
        request = self.engine.request
        path = self.engine.ready_path or request.ready_path()
        if request.protocol == "open-inference":
            assert path is not None
            return ReadinessCheck(path=path)
        sent = request_source.plain_requests(request, settings, self.spec)  # raises early
        if path is not None:
            return ReadinessCheck(path=path)
        return ReadinessCheck(
            path=sent.path, method=sent.method, headers=sent.headers, body=sent.requests[0]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandTarget(_OtherEngine[CommandEngine]):
    """Engine that an engine file describes, started for each configuration."""

    @functools.cached_property
    def own(self) -> SearchSpace:
        """Search space of the engine file; reading it raises InvalidSpace if it is invalid."""
        known = knob_schema.of_command(self.engine.knobs, beside=engine_file.OWN_KEYS)
        return files.parse(self.engine.text, file=str(self.engine.file), vocabulary=known)

    def space(self, settings: TargetSettings, *, goes_on: bool = False) -> SpaceFile:
        """Return the given search space, or the engine file's if none is given."""
        del goes_on
        if settings.space is None:
            return problem.unwritten(self.own, self.spec)
        return files.read(settings.space, knob_schema.of_command(self.engine.knobs))

    def completed(self, configuration: Configuration) -> Configuration:
        """Add the engine file's values of knobs that are not searched."""
        return Configuration({**self.own.default(), **configuration})

    def launcher(self, settings: TargetSettings, *, say: Callable[[str], None]) -> Launcher:
        """Return the launcher of the engine file's command."""
        del say
        sign = self._sign(settings)
        file = settings.model if self.spec.path is None else str(self.spec.path)
        return CommandLauncher(
            self.engine, self.own.default(), model=self.spec.name, file=file, sign=sign
        )

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Files of the model, and the body of raw requests."""
        body = self.engine.request.body
        return self.spec.files if body is None else (*self.spec.files, body)

    def file_copy(self) -> tuple[str, str]:
        """Return name and text of the engine file."""
        return COPY, self.engine.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class UrlTarget(_OtherEngine[UrlEngine]):
    """Running server, configured by a hook."""

    def space(self, settings: TargetSettings, *, goes_on: bool = False) -> SpaceFile:
        """Return the given search space, or raise UsageError if there is none."""
        del goes_on
        if settings.space is None:
            raise UsageError(
                f"--engine {settings.engine}: needs --space FILE, the knobs that its hook understands"
            )
        return files.read(settings.space, knob_schema.OF_URL)

    def launcher(self, settings: TargetSettings, *, say: Callable[[str], None]) -> Launcher:
        """Return the launcher that configures the running server."""
        return UrlLauncher(self.engine, model=self.spec.name, sign=self._sign(settings), say=say)


def find_target(settings: TargetSettings, *, kept: str | None = None) -> Target:
    """Return the target that the settings name.

    Args:
        kept: text of the study's copy of the engine or scenario file; None to read the original.

    Raises:
        UsageError: the engine is invalid, or the model is unknown or has an unsuitable name.
        InvalidScenario: the scenario is invalid.
    """
    if settings.scenario is not None:
        path = pathlib.Path(settings.scenario).absolute()
        text = kept or scenario_files.read_text(path)
        name = re.sub(r"[^A-Za-z0-9]+", "-", settings.model).strip("-") or "scenario"
        return ScenarioTarget(
            spec=ModelSpec(name=name, version="", kind="scenario", path=None),
            scenario=scenario_files.parse(text, path),
            text=text,
        )
    kind, _, rest = settings.engine.partition(":")
    if kind == "url":
        return url_target(_of_url(settings, rest), settings)
    if not settings.is_of_other_engine:
        return LuthierTarget.of(settings)
    engine = engine_lookup.engine_of(settings.engine, kept=kept)
    return CommandTarget(engine=engine, spec=_find_spec(settings))


def url_target(engine: UrlEngine, settings: TargetSettings) -> UrlTarget:
    """Return a running server as a target; raise UsageError if the model name is invalid."""
    return UrlTarget(engine=engine, spec=_find_spec(settings))


def _find_spec(settings: TargetSettings) -> ModelSpec:
    model = settings.model
    if model in bundled.names() or "/" in model or pathlib.Path(model).exists():
        return problem.find_spec(model, is_trusted=settings.trust)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", model):
        raise UsageError(f"--model {model}: expected a name of letters, digits, _ and -, or a file")
    return ModelSpec(name=model, version="", kind="other", path=None)


def _of_url(settings: TargetSettings, url: str) -> UrlEngine:
    assert settings.hook is not None
    try:
        hook = tuple(shlex.split(settings.hook))
    except ValueError as error:
        raise UsageError(f"--hook {settings.hook!r}: {error}") from error
    if not hook:
        raise UsageError("--hook: expected a program and its arguments")
    return running_engine(url, hook=hook, hook_timeout_s=settings.hook_timeout_s)


def running_engine(
    url: str, *, hook: tuple[str, ...] = (), hook_timeout_s: float = 0.0
) -> UrlEngine:
    """Return the engine that a URL of a running server describes.

    Args:
        url: URL of a server, model or page.
        hook: program that applies configurations, if any.

    Raises:
        UsageError: it is not a server's URL.
    """
    where = parse_url(url)
    if where.path == "/":
        request = RequestFormat(protocol="open-inference")
    elif where.model is not None:
        request = RequestFormat(protocol="open-inference", model=where.model, path=where.infer_path)
    elif _TFS_PATH.fullmatch(where.path):
        request = RequestFormat(protocol="tensorflow-serving", path=where.path)
    else:
        request = RequestFormat(protocol="raw", path=where.path)
    return UrlEngine(
        url=url,
        host=where.host,
        port=where.port,
        hook=hook,
        hook_timeout_s=hook_timeout_s,
        request=request,
        ready_timeout_s=READY_TIMEOUT_S if hook else RUNNING_TIMEOUT_S,
    )
