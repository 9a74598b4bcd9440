"""What a study works on: the space as this machine has it, and the payloads."""

from __future__ import annotations

import dataclasses
import pathlib
import socket

import numpy as np
import pytest

from tests.fakes import benches
from tests.fakes.gpu import CLOCKS_MHZ, NO_PERMISSION
from tuner.errors import InvalidSpace, UsageError
from tuner.launching.machine import MachineFacts
from tuner.settings.target import TargetSettings
from tuner.space import files, knob_schema
from tuner.space.environment import Environment, Machine
from tuner.study import problem
from tuner.values.configuration import Configuration

SMALL = Environment(concurrency=4, machine=Machine(cores=2, memory_mb=2048))
WITH_CLOCK = (
    benches.SPACE + "  accelerator.clock_mhz: {type: int, choices: device, unit: MHz}\n"
    "equivalence: [batch-over-concurrency]\n"
)


def arena(text: str = benches.SPACE, limits: str = "enforced") -> problem.ProblemStatement:
    return problem.make_problem(files.parse(text, "toy.yaml"), SMALL, limits=limits)


def test_the_default_stands_for_the_configurations_that_behave_like_it() -> None:
    """At concurrency 4 a batch of 8 never fills: the default is a cell, its equals are none."""
    found = arena()
    cells = found.candidates.configurations
    assert found.default in cells
    assert len(set(cells)) == len(cells)
    like_it = Configuration({**found.default, "batching.max_size": 16})
    assert like_it not in cells
    assert found.is_default(like_it)
    assert not found.is_default(Configuration({**found.default, "replica.count": 2}))


def test_what_the_machine_lacks_is_left_out_and_noted() -> None:
    """Four threads on two cores are no choice here, and a reader is told."""
    found = arena()
    threads = next(knob for knob in found.knobs if knob.name == "replica.threads")
    assert threads.values == (1, 2)
    assert any("replica.threads" in note for note in found.notes)
    assert set(found.distributions) == set(found.default)


def test_knobs_of_other_names_have_the_features_of_their_roles() -> None:
    """Of two spaces that differ in names alone, the candidates have the same vectors."""
    names = {
        "replica.count: {": "workers: {role: replicas, ",
        "replica.cpu: {": "cores: {role: quota, ",
        "replica.memory_mb: {": "memory: {",
        "replica.threads: {": "intra_op: {role: threads, ",
        "batching.max_size: {": "rows: {role: batch, ",
    }
    text = benches.SPACE
    for own, other in names.items():
        text = text.replace(own, other)
    roomy = Environment(concurrency=4, machine=Machine(cores=4, memory_mb=8192))
    own, other = (
        problem.make_problem(files.parse(*given), roomy, limits="enforced").candidates
        for given in (
            (benches.SPACE + "equivalence: []\n", "own.yaml"),
            (text, "other.yaml", knob_schema.OF_URL),
        )
    )
    assert own.extra > 0
    assert np.array_equal(own.vectors, other.vectors)


def test_knobs_of_limits_stay_at_their_default_where_limits_do_nothing() -> None:
    """Without enforced limits cpu and memory keep one value, and the reason is noted."""
    found = arena(limits="not enforced: no control groups here")
    for name in ("replica.cpu", "replica.memory_mb"):
        knob = next(knob for knob in found.knobs if knob.name == name)
        assert knob.values == (knob.default,)
        assert any(name in note and "no control groups" in note for note in found.notes)
    assert len(found.candidates.configurations) < len(arena().candidates.configurations)


def test_the_clock_is_left_out_with_the_reason_that_holds_here() -> None:
    """A space with the GPU's clock is searched without it, and the note does not blame the user."""
    found = arena(WITH_CLOCK)
    assert "accelerator.clock_mhz" not in found.default
    assert any(note.startswith("accelerator.clock_mhz left out: ") for note in found.notes)


def test_models_are_told_before_anything_starts(tmp_path: pathlib.Path) -> None:
    """A bundled name keeps its name, a file becomes absolute, anything else is wrong use."""
    assert problem.absolute_model("echo", problem.find_spec("echo")) == "echo"
    file = tmp_path / "m.onnx"
    file.write_bytes(b"x")
    assert problem.absolute_model(str(file), problem.find_spec(str(file))) == str(file)
    with pytest.raises(UsageError, match="did you mean 'resnet'"):
        problem.find_spec("resnt")


def test_the_bundled_space_is_for_the_bundled_name_alone(tmp_path: pathlib.Path) -> None:
    """A user's own file called like a bundled model gets no space of that model."""
    file = tmp_path / "resnet.onnx"
    file.write_bytes(b"x")
    own = TargetSettings(model=str(file), concurrency=4)
    bundled = TargetSettings(model="resnet", concurrency=4)
    assert problem.find_space(own, problem.find_spec(str(file))) is None
    found = problem.find_space(bundled, problem.find_spec("resnet"))
    assert found is not None
    assert "batching.max_size" in found.space.names
    assert files.parse(found.text, "resnet.yaml") == found.space


def test_a_wrong_space_is_named_by_its_file() -> None:
    """An error in a space names the file and the key."""
    broken = benches.SPACE + "constraints: [replica.count > 9]\n"
    with pytest.raises(InvalidSpace, match=r"toy\.yaml, constraints"):
        arena(broken)


SHARED = (
    benches.SPACE
    + "  accelerator.share: {type: int, choices: [25, 100], default: 100, unit: '%'}\n"
)


def offered(text: str, **given) -> problem.ProblemStatement:
    space = files.parse(text, "toy.yaml")
    environment = problem.with_gpu(SMALL, space, **given)
    return problem.make_problem(space, environment, limits="enforced")


def test_a_gpu_that_can_be_locked_offers_its_clocks(gpu) -> None:
    """By locking it for a moment, where the space asks for a clock; before a start by looking alone."""
    found = offered(WITH_CLOCK, is_tried=False)
    assert found.default["accelerator.clock_mhz"] == 1980
    assert gpu.changes == []
    found = offered(WITH_CLOCK)
    clock = next(knob for knob in found.knobs if knob.name == "accelerator.clock_mhz")
    assert clock.values == CLOCKS_MHZ
    assert gpu.changes == ["lock 1980", "unlock 0"]
    offered(benches.SPACE)
    assert len(gpu.changes) == 2


def test_the_clock_leaves_the_space_with_the_reason_that_it_has(gpu) -> None:
    """No rights, or a model that runs on the CPU: one note."""
    gpu.refuse(nvmlDeviceSetGpuLockedClocks=NO_PERMISSION)
    note = offered(WITH_CLOCK).notes[-1]
    assert note.startswith(
        "accelerator.clock_mhz left out: the GPU: its clock cannot be locked: Ins"
    )
    note = offered(WITH_CLOCK, device="cpu").notes[-1]
    assert note == "accelerator.clock_mhz left out: the model runs on the CPU"


def test_a_share_is_searched_where_mps_runs(tmp_path, monkeypatch) -> None:
    """Else it leaves the space with the reason."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    note = offered(SHARED).notes[-1]
    assert note.startswith("accelerator.share left out: no CUDA MPS control daemon answers at")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert offered(SHARED).default["accelerator.share"] == 100


def test_an_accuracy_that_is_asked_for_makes_the_variant_a_knob() -> None:
    """With a constraint; once more, as a study that goes on does, it changes nothing."""
    card = problem.find_spec("resnet")
    target = TargetSettings(model="resnet", concurrency=4, min_accuracy=0.92)
    file = problem.find_space(target, card)
    assert file is not None
    space = problem.with_variants(file.space, target, card)
    assert problem.with_variants(space, target, card) is space
    assert files.parse(file.text_of(space), "resnet.yaml") == space
    facts = MachineFacts(cores=2, memory_mb=8192)
    environment = problem.environment_of(target, facts, card)
    found = problem.make_problem(space, environment, limits="enforced")
    assert found.default["model.variant"] == "resnet20"
    accurate = {name for name, variant in card.variants.items() if variant.accuracy >= 0.92}
    assert {cell["model.variant"] for cell in found.space.candidates(environment)} == accurate

    unasked = TargetSettings(model="resnet", concurrency=4)
    assert problem.with_variants(file.space, unasked, card) is file.space
    assert file.text_of(file.space) == file.text


def test_an_accuracy_needs_variants() -> None:
    """A model without them is refused with a line that says what they are."""
    target = TargetSettings(model="echo", concurrency=4, min_accuracy=0.5)
    with pytest.raises(UsageError, match=r"--min-accuracy 0.5: echo has no variants"):
        problem.find_space(target, problem.find_spec("echo"))
    with pytest.raises(UsageError, match="--min-accuracy 90"):
        TargetSettings(model="resnet", concurrency=4, min_accuracy=90)


def test_of_equal_predictions_the_one_nearest_to_the_default_is_the_best() -> None:
    """A prediction does not tell of memory: the tightest limit is no better for it."""
    toy = benches.arena()
    guess = np.array(
        [1.0 if cell["replica.count"] == 2 else 2.0 for cell in toy.candidates.configurations]
    )
    best = dataclasses.replace(toy, prediction=guess).predicted_best
    assert best is not None
    assert best["replica.count"] == 2
    assert best["replica.memory_mb"] == toy.default["replica.memory_mb"]
    assert toy.predicted_best is None
