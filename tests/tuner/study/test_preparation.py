"""What readers are told before the first launch."""

from __future__ import annotations

import dataclasses

import pytest

from serving.values import Signature, TensorSpec
from tests.fakes import benches
from tuner.errors import LaunchFailed, UsageError
from tuner.evaluation.evaluator import Evaluator
from tuner.launching.engine import EngineInfo
from tuner.launching.engine_process import LuthierLauncher, LuthierProcess
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study.preparation import _check_energy, notes_of, start_target
from tuner.values.configuration import Configuration

FREE = EngineInfo(
    model="toy",
    kind="onnx",
    signature=Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 64)),), outputs=()
    ),
    limits="enforced",
)
FIXED = dataclasses.replace(
    FREE,
    signature=Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(1, 64)),), outputs=()),
)
SETTINGS = StudySettings(target=TargetSettings(model="toy", concurrency=1))


def notes(served: EngineInfo, space: str = benches.SPACE) -> list[str]:
    return list(notes_of(benches.inputs(SETTINGS, served, benches.arena(space))))


def test_batching_knobs_of_a_model_with_a_fixed_batch_are_noted_once() -> None:
    """A user's own space may hold them; they change nothing, and only those that are there."""
    (note,) = notes(FIXED)
    assert "(input 'x' has a first dimension that is fixed at 1)" in note
    assert note.endswith("batching.max_size change nothing")
    pad_to = "  batching.pad_to: {type: int, choices: [8, 16], default: 8}\n"
    (note,) = notes(FIXED, benches.SPACE + pad_to)
    assert note.endswith("batching.max_size and batching.pad_to change nothing")
    assert notes(FREE) == []


def test_a_cache_that_is_searched_is_noted_with_what_is_sent() -> None:
    """Its hit rate is that of the payloads, which come round; without the knob there is no such note."""
    for choices, default in (([0, 64], 0), ([64], 64)):
        knob = f"  cache.capacity_mb: {{type: int, choices: {choices}, default: {default}}}\n"
        (note,) = notes(FREE, benches.SPACE + knob)
        assert note.startswith("the search includes a response cache (cache.capacity_mb)")
        assert "(one), so the hit rate is not" in note


def test_limits_that_are_not_enforced_are_noted() -> None:
    """With the engine's own reason."""
    served = dataclasses.replace(FREE, limits="not enforced: no control groups")
    assert notes(served) == ["limits: not enforced: no control groups"]


def test_the_energy_of_another_machine_cannot_be_made_best() -> None:
    """This machine's counters say nothing of it."""
    measurement = MeasurementSettings(objective="energy")
    target = TargetSettings(model="toy", concurrency=1)
    settings = StudySettings(target=target, measurement=measurement)
    elsewhere = dataclasses.replace(FREE, is_here=False, engine="theirs")
    with pytest.raises(UsageError, match="theirs runs on another machine"):
        _check_energy(settings, elsewhere)


class Failing(LuthierLauncher):
    """Launcher whose server rejects the declared inputs."""

    said = ""

    def start(self, configuration: Configuration | None) -> LuthierProcess:
        raise LaunchFailed("start", f"model toy (a.skops) cannot be loaded: {self.said}")


@pytest.mark.parametrize(
    ("name", "said", "error", "phrase"),
    [
        ("model.values", "X=1: no such input", UsageError, "^--values X=1: no such input$"),
        ("model.shapes", "Y: no such input", UsageError, "^--shape Y: no such input$"),
        ("batching.max_size", "1", LaunchFailed, "^--model a.skops: model toy .* cannot"),
    ],
)
def test_wrong_sizes_and_values_are_errors_of_their_options(
    name: str, said: str, error: type[Exception], phrase: str
) -> None:
    """Only if the option was given; what else the server says is about the model."""
    launcher = Failing("a.skops", always={name: said})
    launcher.said = f"{name} {said}"
    settings = MeasurementSettings()
    with (
        Evaluator(
            model="a.skops", concurrency=1, settings=settings, launcher=launcher
        ) as evaluator,
        pytest.raises(error, match=phrase),
    ):
        start_target(evaluator)
