"""Arms of a comparison, each named by a settings file, study, model, engine or running server.

Arms are checked; nothing is started.
"""

from __future__ import annotations

import dataclasses
import pathlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from serving import zoo
from serving.errors import InvalidSettings, ServingError
from serving.settings import SETTINGS, ServingSettings
from serving.settings.sources import read_file
from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem
from tuner.advice import advise
from tuner.engines.description import UrlEngine
from tuner.errors import UsageError
from tuner.launching.engine import EngineInfo, Launcher
from tuner.load_generator.payloads import Payloads
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store import run_folder
from tuner.study import study_files, targets
from tuner.study.progress import Terminal
from tuner.study.target import LuthierTarget, Target
from tuner.values.configuration import Configuration, Value

ARMS = ("A", "B")
NO_MODEL = "none"
"""Model name if the command names no model."""
LOAD = ("concurrency", "rate", "arrivals", "client_batch")
SENT = ("payload", "shape", "values")
"""Workload settings that come from the command or, if missing there, from a compared study."""
CONNECT_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AbArm:
    """Arm A or B."""

    told: str
    launcher: Launcher
    configuration: Configuration
    payloads_of: Callable[[EngineInfo], Payloads]
    model: str
    """Name or file of the model, or "" if a server's page has none."""
    is_running: bool = False
    """Whether the server is already running and stays unchanged."""


def find_arms(
    words: tuple[str, str], settings: StudySettings, terminal: Terminal
) -> dict[str, AbArm]:
    """Return both arms without starting anything; raise UsageError if invalid or identical."""
    settings = _with_sent(words, settings)
    found = {
        role: _find_arm(role, text, settings, terminal)
        for role, text in zip(ARMS, words, strict=True)
    }
    first: dict[str, EngineInfo] = {}
    found = {role: _checked(role, side, first) for role, side in found.items()}
    a, b = found["A"], found["B"]
    if (a.told, a.configuration) == (b.told, b.configuration):
        raise UsageError(
            f"A and B are the same: {a.told}; tune doctor --noise measures this machine's noise"
        )
    return found


def _with_sent(words: tuple[str, str], settings: StudySettings) -> StudySettings:
    target = settings.target
    told: dict[str, Any] = {}
    for role, text in zip(ARMS, words, strict=True):
        folder = _study_folder(text, settings)
        if folder is None:
            continue
        kept = study_files.settings_of(run_folder.find(folder.parent, folder.name)).target
        for name in SENT:
            value = getattr(kept, name)
            if getattr(target, name) or not value:
                continue
            if told.setdefault(name, value) != value:
                raise UsageError(
                    f"the studies were sent different inputs ({name}: {told[name]} and "
                    f"{value}, of {role}); choose one for both (--{name})"
                )
    return dataclasses.replace(settings, target=dataclasses.replace(target, **told))


def _study_folder(text: str, settings: StudySettings) -> pathlib.Path | None:
    path = pathlib.Path(text)
    below = pathlib.Path(settings.store.runs_dir) / text
    if (path / run_folder.SETTINGS_FILE).exists():
        return path
    return below if not path.exists() and (below / run_folder.SETTINGS_FILE).exists() else None


def _checked(arm: str, side: AbArm, first: dict[str, EngineInfo]) -> AbArm:
    def payloads_of(served: EngineInfo) -> Payloads:
        role, before = next(iter(first.items()), (arm, served))
        first[role] = before
        if before.signature is not None and served.signature is not None:
            one, other = _inputs(before), _inputs(served)
            if one != other:
                raise UsageError(
                    f"{role} takes {one}, {arm} takes {other}: only targets with the same "
                    "inputs can be compared"
                )
        return side.payloads_of(served)

    return dataclasses.replace(side, payloads_of=payloads_of)


def _inputs(served: EngineInfo) -> str:
    signature = served.told_signature()
    return ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in signature.inputs)


def _find_arm(arm: str, text: str, settings: StudySettings, terminal: Terminal) -> AbArm:
    target = settings.target
    if "://" in text:
        return _of_url(arm, text, target, terminal)
    path = pathlib.Path(text)
    if (folder := _study_folder(text, settings)) is not None:
        return _of_study(arm, folder, target, terminal)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        data = _document(path)
        if "command" in data:
            return _of_engine(arm, f"command:{text}", target, terminal)
        return _of_settings(arm, path, target, terminal)
    return _of_model(arm, text, target, terminal)


def _document(path: pathlib.Path) -> Mapping[str, object]:
    try:
        found = bounded_yaml.read(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not YAML: {yaml_problem(error)}") from error
    return found if isinstance(found, dict) else {}


def _make_arm(
    arm: str,
    told: str,
    target: TargetSettings,
    terminal: Terminal,
    configuration: Configuration | None = None,
    *,
    found: Target | None = None,
    is_running: bool = False,
) -> AbArm:
    tuned = found or LuthierTarget.of(target)

    def say(text: str) -> None:
        terminal.say(f"{arm}: {text}", style="yellow")

    def payloads_of(served: EngineInfo) -> Payloads:
        sent = tuned.payloads(target, served, seed=0)
        assert isinstance(sent, Payloads), "a scenario cannot be a side"
        return sent

    return AbArm(
        told=told,
        launcher=tuned.launcher(target, say=say),
        configuration=tuned.completed(configuration or Configuration({})),
        payloads_of=payloads_of,
        model=target.model,
        is_running=is_running,
    )


def _of_model(arm: str, text: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    if not pathlib.Path(text).exists():
        try:
            zoo.find(text, is_trusted=target.trust)  # raises with known names
        except ServingError as error:
            raise UsageError(f"{arm}: {text} is not a file, a study or a model: {error}") from error
    return _make_arm(
        arm, f"model {text}", dataclasses.replace(target, model=text, space=None), terminal
    )


def _of_engine(arm: str, engine: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    _check_model(arm, engine, target)
    target = dataclasses.replace(target, engine=engine)
    return _make_arm(
        arm,
        f"{target.model} behind {engine}",
        target,
        terminal,
        found=targets.find_target(target),
    )


def _of_settings(arm: str, path: pathlib.Path, target: TargetSettings, terminal: Terminal) -> AbArm:
    _check_model(arm, str(path), target)
    try:
        data = read_file(path)
        ServingSettings().with_changes(data, source=f"{arm}: settings file {path}")
    except InvalidSettings as error:
        raise UsageError(str(error)) from error
    flat = dict(_flat(data))
    if (own_of := next((name for name in flat if name not in SETTINGS), None)) is not None:
        raise UsageError(
            f"{arm}: {path} sets {own_of} for one model; give it as a setting of all "
            "models, without models.NAME"
        )
    own = {name: value for name, value in flat.items() if not name.startswith("server.")}
    if left := [name for name in flat if name not in own and flat[name] != SETTINGS[name].default]:
        terminal.say(
            f"{arm}: {', '.join(left)} of {path} belong to a server and are not "
            "compared: both sides use the defaults",
            style="yellow",
        )
    return _make_arm(arm, f"{target.model} with {path}", target, terminal, Configuration(own))


def _of_study(arm: str, path: pathlib.Path, target: TargetSettings, terminal: Terminal) -> AbArm:
    folder = run_folder.find(path.parent, path.name)
    settings = study_files.settings_of(folder)
    if not study_files.is_finished(folder):
        raise UsageError(
            f"{arm}: study {folder.name} is not finished and has no recommendation yet"
        )
    record = study_files.read(folder, study_files.store_of(folder, settings), settings)
    advice = advise(record)
    if advice is None:
        raise UsageError(f"{arm}: study {folder.name} has no configuration that worked")
    if record.shared is not None:
        raise UsageError(f"{arm}: study {folder.name} is of a scenario; a side has one model")
    sent = {name: getattr(target, name) for name in (*LOAD, *SENT)}
    target = dataclasses.replace(settings.target, space=None, fixed=(), **sent)
    told = f"the recommendation of study {folder.name} for {target.model}"
    found = targets.find_target(target, kept=study_files.engine_copy(folder))
    return _make_arm(arm, told, target, terminal, advice.configuration, found=found)


def _of_url(arm: str, url: str, target: TargetSettings, terminal: Terminal) -> AbArm:
    engine = targets.running_engine(url)
    _check_listens(arm, url, engine)
    if engine.request.protocol == "raw" and target.payload is None:
        form = dataclasses.replace(engine.request, method="GET")
        engine = dataclasses.replace(engine, request=form)
    model = engine.request.model or target.model
    if engine.request.protocol == "open-inference":
        _check_model(arm, url, dataclasses.replace(target, model=model))
    target = dataclasses.replace(target, model=model, engine=f"url:{url}", hook="-")
    found = targets.url_target(engine, target)
    return _make_arm(arm, url, target, terminal, found=found, is_running=True)


def _check_listens(arm: str, url: str, engine: UrlEngine) -> None:
    try:
        socket.create_connection((engine.host, engine.port), timeout=CONNECT_S).close()
    except OSError as error:
        raise UsageError(
            f"{arm}: nothing listens at {url} ({error.strerror or error}): start that server, or correct its address"
        ) from error


def _check_model(arm: str, text: str, target: TargetSettings) -> None:
    if target.model == NO_MODEL:
        raise UsageError(f"{arm}: {text} names no model: give --model NAME|FILE")


def _flat(data: Mapping[str, object], within: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in data.items():
        whole = f"{within}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{whole}.")
        elif isinstance(value, int | float | str | bool):
            yield whole, value
