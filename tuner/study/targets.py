"""Inputs of a study whose target is another engine or a scenario.

Falls back to those of Luthier (`problem`). Starts nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
from collections.abc import Callable

from serving.model_spec import ModelSpec
from serving.zoo import bundled
from tuner.engines import engine_lookup
from tuner.engines import file as engine_file
from tuner.engines.description import (
    READY_TIMEOUT_S,
    CommandEngine,
    OtherEngine,
    RequestFormat,
    ScenarioEngine,
    UrlEngine,
)
from tuner.errors import UsageError
from tuner.evaluation.scenarios import files as scenario_files
from tuner.evaluation.scenarios import served, tuning
from tuner.evaluation.scenarios.engine import ScenarioLauncher
from tuner.evaluation.scenarios.requests import ScenarioRequests, model_of
from tuner.evaluation.scenarios.values import Scenario
from tuner.launching.command_engine import CommandLauncher, ServedModel
from tuner.launching.engine import EngineInfo, Launcher
from tuner.launching.readiness import ReadinessCheck
from tuner.launching.url_engine import UrlLauncher
from tuner.load_generator import plain_payloads
from tuner.load_generator.endpoint import parse_url
from tuner.load_generator.payloads import Payloads
from tuner.settings.target import TargetSettings
from tuner.space import files, knob_schema
from tuner.space.knob_schema import KnobSchema
from tuner.space.space import SearchSpace
from tuner.study import problem
from tuner.values.study_record import SharedModels

RUNNING_TIMEOUT_S = 5.0
"""For a server that should already run."""
_TFS_PATH = re.compile(r".*/v1/models/(?P<model>[^/?:]+)(/versions/\d+)?:predict")


def engine_of(target: TargetSettings, *, kept: pathlib.Path | None = None) -> OtherEngine | None:
    """Return the named engine, or None for Luthier with one model.

    Args:
        kept: the study's copy of the engine or scenario file; None: the original.

    Raises:
        WrongUse: the engine is invalid.
    """
    if target.scenario is not None:
        path = pathlib.Path(target.scenario).absolute()
        engine = ScenarioEngine(file=path, text=scenario_files.read_text(kept or path))
        scenario_of(engine)  # raises early
        return engine
    kind, _, rest = target.engine.partition(":")
    if kind == "url":
        return _of_url(target, rest)
    if not target.is_of_other_engine:
        return None
    return engine_lookup.engine_of(
        target.engine, kept=None if kept is None else engine_file.read_text(kept)
    )


def find_spec(target: TargetSettings, engine: OtherEngine | None) -> ModelSpec:
    """Return the model spec; another engine accepts any name.

    Raises:
        WrongUse: unknown model or unsuitable name.
    """
    model = target.model
    if isinstance(engine, ScenarioEngine):
        name = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-") or "scenario"
        return ModelSpec(name=name, version="", kind="scenario", path=None)
    is_file = "/" in model or pathlib.Path(model).exists()
    if engine is None or model in bundled.names() or is_file:
        return problem.find_spec(model, is_trusted=target.trust)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", model):
        raise UsageError(f"--model {model}: expected a name of letters, digits, _ and -, or a file")
    return ModelSpec(name=model, version="", kind="other", path=None)


def scenario_of(engine: ScenarioEngine) -> Scenario:
    """Parse the scenario.

    Raises:
        InvalidScenario: it is invalid.
    """
    return scenario_files.parse(engine.text, engine.file)


def shared_of(engine: OtherEngine | None) -> SharedModels | None:
    """Return a scenario's models and settings, else None."""
    if not isinstance(engine, ScenarioEngine):
        return None
    scenario = scenario_of(engine)
    deadline_s = scenario.streams[0].deadline.first_s
    return SharedModels(
        groups={group.name: (model_of(group), group.copies) for group in scenario.groups},
        # Requests carry deadlines, but the policy rejects none without one of its own.
        settings={
            "scheduling.default_deadline_s": deadline_s,
            **served.configuration_of(scenario),
        },
    )


def knob_schema_of(engine: OtherEngine | None) -> KnobSchema:
    """Return the engine's knob vocabulary."""
    if isinstance(engine, CommandEngine):
        return knob_schema.of_command(engine.knobs)
    return knob_schema.OF_URL if isinstance(engine, UrlEngine) else knob_schema.SERVING


def space_text_of(
    engine: OtherEngine | None,
    target: TargetSettings,
    card: ModelSpec,
    *,
    goes_on: bool = False,
) -> str | None:
    """Return the given search space, else the engine's, else None.

    A scenario's values become defaults unless the study has already searched it (`goes_on`).

    Raises:
        InvalidSpace: it is invalid.
        WrongUse: the engine needs one.
    """
    if engine is None:
        return problem.space_text_of(target, card)
    if target.space is not None:
        found = files.load(target.space, knob_schema_of(engine))
        if isinstance(engine, ScenarioEngine) and not goes_on:
            return files.dump(tuning.with_baseline(found, scenario_of(engine)))
        return files.read_text(target.space)
    if isinstance(engine, UrlEngine):
        raise UsageError(
            f"--engine {target.engine}: needs --space FILE with the knobs that its hook supports"
        )
    if isinstance(engine, ScenarioEngine):
        return tuning.space_text(scenario_of(engine))
    return files.dump(_own_space(engine))


def launcher_of(
    engine: OtherEngine | None,
    target: TargetSettings,
    card: ModelSpec,
    *,
    say: Callable[[str], None],
) -> Launcher:
    """Return what starts or configures the engine.

    Args:
        say: prints what the user must know at the end.

    Raises:
        WrongUse: the payload is unreadable.
    """
    if engine is None:
        return problem.launcher_of(target)
    if isinstance(engine, ScenarioEngine):
        return ScenarioLauncher(scenario_of(engine), target.home)
    sign = _sign(engine, target, card)
    if isinstance(engine, UrlEngine):
        return UrlLauncher(engine, model=card.name, sign=sign, say=say)
    file = target.model if card.path is None else str(card.path)
    about = ServedModel(name=card.name, file=file, sign=sign)
    return CommandLauncher(engine, about, _own_space(engine).default())


def payloads_of(
    engine: OtherEngine | None,
    target: TargetSettings,
    card: ModelSpec,
    told: EngineInfo,
    *,
    seed: int,
) -> Payloads | ScenarioRequests:
    """Return the requests.

    Raises:
        WrongUse: a file is missing, unreadable or unsuitable.
    """
    if isinstance(engine, ScenarioEngine):
        return ScenarioRequests(scenario_of(engine))
    if engine is not None and engine.request.protocol != "open-inference":
        return _plain(engine.request, target, card)
    found = problem.payloads_of(target, card, told, seed=seed)
    if engine is None:
        return found
    return dataclasses.replace(
        found,
        path=engine.request.infer_path(card.name),
        headers={**found.headers, **engine.request.headers},
    )


def _own_space(engine: CommandEngine) -> SearchSpace:
    known = knob_schema.of_command(engine.knobs, beside=engine_file.OWN_KEYS)
    return files.parse(engine.text, file=str(engine.file), vocabulary=known)


def _sign(
    engine: CommandEngine | UrlEngine, target: TargetSettings, card: ModelSpec
) -> ReadinessCheck:
    """Return the readiness check: the ready page, else the first request."""
    path = engine.ready_path or engine.request.ready_path()
    if engine.request.protocol == "open-inference":
        assert path is not None
        return ReadinessCheck(path=path)
    sent = _plain(engine.request, target, card)  # raises early
    if path is not None:
        return ReadinessCheck(path=path)
    return ReadinessCheck(
        path=sent.path, method=sent.method, headers=sent.headers, body=sent.requests[0]
    )


def _plain(request: RequestFormat, target: TargetSettings, card: ModelSpec) -> Payloads:
    """Build requests without the server's help."""
    for flag, told in (("--shape", target.shape), ("--values", target.values)):
        if told:
            raise UsageError(
                f"{flag} {told[0]}: a {request.protocol} server does not report the "
                "inputs of its model; use --payload FILE"
            )
    if target.client_batch > 1 and not _is_batched(request, target):
        raise UsageError(
            f"--client-batch {target.client_batch}: the items of a {request.protocol} request cannot be "
            "counted here; use --client-batch 1"
        )
    to, headers = request.infer_path(card.name), request.headers
    given = None if target.payload is None else pathlib.Path(target.payload)
    is_tfs = request.protocol == "tensorflow-serving"
    if is_tfs or request.is_tensor:
        arrays = given or card.sample
        if arrays is None:
            raise UsageError(
                f"model {card.name!r} has no sample inputs; use --payload FILE, an .npz "
                "with one array per input"
            )
        if is_tfs and arrays.suffix != ".npz":
            return plain_payloads.from_file(
                arrays, to=to, method="POST", headers=headers, answer="tensorflow-serving"
            )
        if is_tfs:
            return plain_payloads.instances(
                arrays, to=to, headers=headers, client_batch=target.client_batch
            )
        return plain_payloads.tensors(
            arrays, to=to, method=request.method, headers=headers, answer=request.answer or ""
        )
    body = given or request.body
    if body is not None:
        return plain_payloads.from_file(body, to=to, method=request.method, headers=headers)
    if request.method == "GET":
        return Payloads(
            requests=(b"",),
            headers=headers,
            path=to,
            method="GET",
            answer="",
            description="GET without a body",
        )
    raise UsageError(f"{request.method} {to} needs a body; use --payload FILE")


def _is_batched(request: RequestFormat, target: TargetSettings) -> bool:
    """Whether requests of any number of items are built here."""
    is_file = target.payload is not None and not target.payload.endswith(".npz")
    return request.protocol == "tensorflow-serving" and not is_file


def _of_url(target: TargetSettings, url: str) -> UrlEngine:
    assert target.hook is not None
    try:
        hook = tuple(shlex.split(target.hook))
    except ValueError as error:
        raise UsageError(f"--hook {target.hook!r}: {error}") from error
    if not hook:
        raise UsageError("--hook: expected a program and its arguments")
    return running_engine(url, hook=hook, hook_timeout_s=target.hook_timeout_s)


def running_engine(
    url: str, *, hook: tuple[str, ...] = (), hook_timeout_s: float = 0.0
) -> UrlEngine:
    """Return the engine of a running server's URL.

    Args:
        url: of a server, model or page.
        hook: applies configurations; empty: none.

    Raises:
        WrongUse: it is not a server's URL.
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
