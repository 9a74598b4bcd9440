"""Inputs of a study of another engine: what the settings mean, and what is missing."""

from __future__ import annotations

import pathlib

import pytest

from tests.fakes import other_engines as fakes
from tuner.engines.description import CommandEngine, ScenarioEngine, UrlEngine
from tuner.errors import UsageError
from tuner.launching.command_engine import CommandLauncher
from tuner.settings.target import TargetSettings
from tuner.settings.workload import SCENARIO as SCENARIO_ARRIVALS
from tuner.study import targets


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
    engine = targets.engine_of(target(f"url:{url}"))
    assert isinstance(engine, UrlEngine)
    assert (engine.host, engine.port) == ("h", 1)
    assert engine.request.protocol == protocol
    assert engine.request.infer_path("thing") == path
    assert engine.request.ready_path() == ready


def test_a_kept_copy_is_read_instead_of_the_file(tmp_path: pathlib.Path) -> None:
    """And its folder is still that of the file."""
    path = fakes.written(tmp_path / "user")
    kept = tmp_path / "study" / "engine.yaml"
    kept.parent.mkdir()
    kept.write_text(path.read_text().replace("name: tiny", "name: kept"))
    engine = targets.engine_of(target(f"command:{path}"), kept=kept)
    assert isinstance(engine, CommandEngine)
    assert (engine.name, engine.file) == ("kept", path)


def test_any_name_names_a_model_of_another_engine() -> None:
    """A bundled one brings its sample; a path must be there; the serving core knows its own only."""
    engine = targets.engine_of(target("url:http://h:1"))
    assert targets.find_spec(target("url:http://h:1"), engine).sample is None
    bundled = TargetSettings(model="resnet", concurrency=1)
    assert targets.find_spec(bundled, engine).sample is not None
    for model in ("a b", "./no.onnx"):
        with pytest.raises(UsageError):
            targets.find_spec(TargetSettings(model=model, concurrency=1), engine)
    with pytest.raises(UsageError, match="is not known"):
        targets.find_spec(TargetSettings(model="thing", concurrency=1), None)


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
    engine = targets.engine_of(raw)
    assert engine is not None
    card = targets.find_spec(raw, engine)
    with pytest.raises(UsageError, match="needs --space FILE"):
        targets.space_text_of(engine, raw, card)
    with pytest.raises(UsageError, match="POST /x needs a body"):
        targets.launcher_of(engine, raw, card, say=print)
    with pytest.raises(UsageError, match="--client-batch 2: the items of a raw request"):
        batched = target("url:http://h:1/x", client_batch=2)
        targets.launcher_of(engine, batched, card, say=print)
    path = fakes.written(tmp_path)
    path.write_text(path.read_text().replace("body: body.txt", "encoding: tensor"))
    tensor = target(f"command:{path}")
    engine = targets.engine_of(tensor)
    with pytest.raises(UsageError, match="'thing' has no sample inputs"):
        targets.launcher_of(engine, tensor, card, say=print)
    with pytest.raises(UsageError, match="No closing quotation"):
        hook = TargetSettings(model="m", concurrency=1, engine="url:h:1", hook="a 'b")
        targets.engine_of(hook)


def test_knobs_that_a_space_leaves_out_keep_the_values_of_the_file(tmp_path: pathlib.Path) -> None:
    """The launcher knows the default of each."""
    path = fakes.written(tmp_path)
    given = target(f"command:{path}")
    engine = targets.engine_of(given)
    card = targets.find_spec(given, engine)
    launcher = targets.launcher_of(engine, given, card, say=print)
    assert isinstance(launcher, CommandLauncher)
    assert dict(launcher.defaults) == {"delay.ms": 20}


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
    engine = targets.engine_of(given)
    assert isinstance(engine, ScenarioEngine)
    assert engine.file == path
    assert targets.find_spec(given, engine).name == "my-pool-v2"
    shared = targets.shared_of(engine)
    assert shared is not None
    assert dict(shared.groups) == {"m": ("mnist", 1)}
    assert shared.settings["scheduling.default_deadline_s"] == 0.05

    kept = tmp_path / "kept.yaml"
    kept.write_text(SCENARIO.replace("rate: 9", "rate: 8"), encoding="utf-8")
    path.write_text("seconds: soon\n", encoding="utf-8")
    again = targets.engine_of(given, kept=kept)
    assert isinstance(again, ScenarioEngine)
    assert targets.scenario_of(again).streams[0].rate_per_s == 8.0
    with pytest.raises(UsageError, match=r"my pool.v2.yaml, models: nothing"):
        targets.engine_of(given)
