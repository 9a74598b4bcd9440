"""The Job that loads an export sends the load of its study, and is given the time for it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from tests.fakes import studies
from tuner.errors import UsageError
from tuner.export import confirmation_job
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings

STUDY = studies.study(trials=12)
CLOSED = TargetSettings(model="resnet", concurrency=20)
OPEN = TargetSettings(model="resnet", rate=20.0, arrivals="burst")


def job_of(
    target: TargetSettings = CLOSED, seconds: float = 0.6, **measurement: Any
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Specification of the Job, its container, and the words of its script."""
    text = confirmation_job.manifest(
        STUDY, target, MeasurementSettings(**measurement), url=None, repeats=3, seconds=seconds
    )
    spec = yaml.safe_load(text)["spec"]
    (loader,) = spec["template"]["spec"]["containers"]
    return spec, loader, shlex.split(loader["command"][2])


def value_of(words: list[str], option: str) -> str | None:
    """Value of an option, or None if it is not given."""
    return words[words.index(option) + 1] if option in words else None


def test_every_process_of_the_load_generator_has_a_core() -> None:
    """As many as in the study, with their memory."""
    _, loader, words = job_of()
    assert value_of(words, "--load-clients") is None
    assert loader["resources"]["limits"] == {"cpu": "1", "memory": "1024Mi"}
    _, loader, words = job_of(load_clients=3)
    assert value_of(words, "--load-clients") == "3"
    assert loader["resources"]["limits"] == {"cpu": "3", "memory": "1536Mi"}
    assert loader["resources"]["requests"] == loader["resources"]["limits"]


def test_goodput_is_counted_by_the_deadline_of_the_study() -> None:
    """A limit of the p99 is no deadline."""
    assert value_of(job_of(objective="goodput", slo_ms=50.0)[2], "--slo-ms") == "50.0"
    by_constraint = job_of(constraints=("goodput_per_s >= 5",), slo_ms=50.0)[2]
    assert value_of(by_constraint, "--slo-ms") == "50.0"
    assert value_of(job_of(slo_ms=50.0)[2], "--slo-ms") is None


def test_each_evaluation_of_an_open_loop_draws_other_arrivals() -> None:
    """Their seed is the number of the evaluation."""
    assert value_of(job_of(OPEN)[2], "--seed") == "$i"
    assert "--seed" not in job_of()[2]


def test_a_load_that_fails_does_not_fail_the_job() -> None:
    """Its line says so, and the others go on."""
    assert job_of()[2][-2:] == ["done;", "true"]


def test_it_measures_as_long_as_the_study() -> None:
    """Which measures longer for a p99, or from a slow server."""
    assert value_of(job_of(seconds=0.598)[2], "--seconds") == "0.6"
    assert value_of(job_of(seconds=5.4, objective="p99")[2], "--seconds") == "5.4"
    assert value_of(job_of(requests=200)[2], "--seconds") is None


@pytest.mark.parametrize(
    ("measurement", "seconds", "least_s"),
    [
        ({}, 0.6, 3 * (0.6 + 0.1)),
        ({"warmup_s": 100.0}, 0.6, 3 * (0.6 + 100.0)),
        ({"timeout_s": 60.0}, 0.6, 3 * (0.6 + 3 * 60.0)),
        ({"requests": 100_000}, 90.0, 3 * 5 * 90.0),
        ({"objective": "p99"}, 12.0, 3 * 12.0),
    ],
)
def test_its_deadline_leaves_time_for_the_load(
    measurement: dict[str, Any], seconds: float, least_s: float
) -> None:
    """For the warm-up, for requests that are counted, and for a minute at each start."""
    spec, _, _ = job_of(seconds=seconds, **measurement)
    assert spec["activeDeadlineSeconds"] >= least_s + 3 * 60


@pytest.mark.parametrize(
    ("target", "measurement", "said"),
    [
        (TargetSettings(model="resnet", arrivals="trace:a.txt"), {}, "the study sent trace:a.txt"),
        (TargetSettings(model="resnet", concurrency=1, payload="a.json"), {}, "sent a.json"),
        (CLOSED, {"objective": "rate", "slo_ms": 5.0}, "searched the highest rate"),
    ],
)
def test_what_a_cluster_does_not_have_is_refused(
    target: TargetSettings, measurement: dict[str, Any], said: str
) -> None:
    """One line says what it is."""
    with pytest.raises(UsageError, match=said):
        job_of(target, **measurement)
