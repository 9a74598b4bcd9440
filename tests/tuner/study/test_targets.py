"""Inputs of a study of another engine: what the settings mean, and what is missing."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tests.fakes import other_engines as fakes
from tuner.errors import UsageError
from tuner.launching.command_engine import CommandLauncher
from tuner.settings.target import TargetSettings
from tuner.settings.workload import SCENARIO as SCENARIO_ARRIVALS
from tuner.space import files, knob_schema
from tuner.study import targets
from tuner.study.target import ScenarioTarget
from tuner.study.targets import CommandTarget, UrlTarget
from tuner.values.configuration import Configuration


def target(engine: str, **options: object) -> TargetSettings:
    hook = "true" if engine.startswith("url:") else None
    return TargetSettings(model="thing", concurrency=2, engine=engine, hook=hook, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "protocol", "path", "ready"),
    [
        ("http://h:1", "open-inference", "/v2/models/thing/infer", "/v2/health/ready"),
        ("http://h:1/v2/models/a", "open-inference", "/v2/models/a/infer", "/v2/health/ready"),
        ("h:1/p/v2/models/a/infer", "open-inference", "/p/v2/models/a/infer", "/p/v2/health/ready"),
        ("http://h:1/v1/models/a:predict", "tensorflow-serving", "/v1/models/a:predict", None),
        ("http://h:1/inference?x=1", "raw", "/inference?x=1", None),
    ],
)
def test_the_url_tells_the_protocol(url: str, protocol: str, path: str, ready: str | None) -> None:
    """By its path; a bare server speaks the Open Inference Protocol."""
    found = targets.find_target(target(f"url:{url}"))
    assert isinstance(found, UrlTarget)
    engine = found.engine
    assert (engine.host, engine.port) == ("h", 1)
    assert engine.request.protocol == protocol
    assert engine.request.infer_path("thing") == path
    assert engine.request.ready_path() == ready


def test_a_kept_copy_is_read_instead_of_the_file(tmp_path: pathlib.Path) -> None:
    """And its folder is still that of the file."""
    path = fakes.written(tmp_path / "user")
    kept = path.read_text().replace("name: tiny", "name: kept")
    found = targets.find_target(target(f"command:{path}"), kept=kept)
    assert isinstance(found, CommandTarget)
    assert (found.engine.name, found.engine.file) == ("kept", path)
    assert found.file_copy() == ("engine.yaml", kept)


def test_any_name_names_a_model_of_another_engine() -> None:
    """A bundled one brings its sample; a path must be there; the serving core knows its own only."""
    running = target("url:http://h:1")
    assert targets.find_target(running).spec.sample is None
    bundled = dataclasses.replace(running, model="resnet")
    assert targets.find_target(bundled).spec.sample is not None
    for model in ("a b", "./no.onnx"):
        with pytest.raises(UsageError):
            targets.find_target(dataclasses.replace(running, model=model))
    with pytest.raises(UsageError, match="is not known"):
        targets.find_target(TargetSettings(model="thing", concurrency=1))


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("command:", {}, "--engine command:: expected luthier, a name, command:FILE or url:URL"),
        ("mosec:", {}, "--engine mosec:: expected luthier, a name"),
        ("luthier", {"hook": "x"}, "only allowed for a running server"),
        ("url:http://h:1", {"hook": None}, "needs --hook COMMAND"),
        ("command:x", {"min_accuracy": 0.9}, "--min-accuracy 0.9: only Luthier has model variants"),
        ("url:http://h:1", {"hook_timeout_s": 0.0, "hook": "x"}, "--hook-timeout 0"),
    ],
)
def test_options_that_contradict_are_refused(
    engine: str, options: dict[str, object], said: str
) -> None:
    """Before anything is read."""
    with pytest.raises(UsageError, match=said):
        TargetSettings(model="m", concurrency=1, engine=engine, **options)  # type: ignore[arg-type]


def test_what_is_missing_is_said_before_anything_starts(tmp_path: pathlib.Path) -> None:
    """The space of a running server, the body of a raw request, the sample of an input's bytes."""
    raw = target("url:http://h:1/x")
    found = targets.find_target(raw)
    with pytest.raises(UsageError, match="needs --space FILE"):
        found.space(raw)
    with pytest.raises(UsageError, match="POST /x needs a body"):
        found.launcher(raw, say=print)
    with pytest.raises(UsageError, match="--client-batch 2: the items of a raw request"):
        batched = target("url:http://h:1/x", client_batch=2)
        found.launcher(batched, say=print)
    path = fakes.written(tmp_path)
    path.write_text(path.read_text().replace("body: body.txt", "encoding: tensor"))
    tensor = target(f"command:{path}")
    with pytest.raises(UsageError, match="'thing' has no sample inputs"):
        targets.find_target(tensor).launcher(tensor, say=print)
    with pytest.raises(UsageError, match="No closing quotation"):
        hook = TargetSettings(model="m", concurrency=1, engine="url:h:1", hook="a 'b")
        targets.find_target(hook)


def test_knobs_that_a_space_leaves_out_keep_the_values_of_the_file(tmp_path: pathlib.Path) -> None:
    """The launcher knows the default of each."""
    path = fakes.written(tmp_path)
    given = target(f"command:{path}")
    found = targets.find_target(given)
    launcher = found.launcher(given, say=print)
    assert isinstance(launcher, CommandLauncher)
    assert dict(launcher.defaults) == {"delay.ms": 20}
    assert dict(found.completed(Configuration({}))) == {"delay.ms": 20}
    file = found.space(given)
    assert file is not None
    known = knob_schema.of_command(["delay.ms"])
    assert files.parse(file.text, "thing.yaml", known) == file.space


SCENARIO = "seconds: 9\nmodels: {m: {model: mnist}}\ntraffic: {m: {rate: 9, deadline_ms: 50}}\n"


def test_a_scenario_is_named_by_its_file_and_kept_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies in the working folder under the same name; the copy counts, and errors name the file."""
    path = tmp_path / "my pool.v2.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "my pool.v2").mkdir()
    monkeypatch.chdir(tmp_path)
    given = TargetSettings(
        model=path.stem, scenario=path.name, rate=9.0, arrivals=SCENARIO_ARRIVALS
    )
    found = targets.find_target(given)
    assert found.spec.name == "my-pool-v2"
    assert found.file_copy() == ("scenario.yaml", SCENARIO)
    file = found.space(given)
    assert file is not None
    assert files.parse(file.text, "my-pool-v2.yaml") == file.space
    shared = found.shared()
    assert shared is not None
    assert dict(shared.groups) == {"m": ("mnist", 1)}
    assert shared.settings["scheduling.default_deadline_s"] == 0.05

    kept = SCENARIO.replace("rate: 9", "rate: 8")
    path.write_text("seconds: soon\n", encoding="utf-8")
    again = targets.find_target(given, kept=kept)
    assert isinstance(again, ScenarioTarget)
    assert again.scenario.streams[0].rate_per_s == 8.0
    with pytest.raises(UsageError, match=r"my pool.v2.yaml, models: nothing"):
        targets.find_target(given)
