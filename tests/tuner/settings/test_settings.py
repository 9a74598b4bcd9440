"""Settings of a study: durations, relations between options, and the way through the file."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.option import duration_s, options
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import GROUPS, StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import MAX_IN_FLIGHT, workload_in_words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90), ("0.5", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    """Hours, minutes and seconds add up; a plain number is seconds."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "ten", "-5", "5 minutes", "1m1h"])
def test_wrong_durations(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match="10m"):
        duration_s(text)


@pytest.mark.parametrize(
    ("group", "values", "named"),
    [
        (TargetSettings, {"model": "echo", "concurrency": 0}, "--concurrency 0"),
        (
            TargetSettings,
            {"model": "echo", "concurrency": 1, "client_batch": 0},
            "--client-batch 0: expected a whole number from 1 to 4096",
        ),
        (
            TargetSettings,
            {"model": "echo", "rate": 0.0},
            "--rate 0: expected requests a second, above 0",
        ),
        (TargetSettings, {"model": "echo", "rate": float("nan")}, "--rate nan: expected"),
        (
            TargetSettings,
            {"model": "echo", "rate": 5.0, "arrivals": "steady"},
            "--arrivals steady: expected poisson, constant, burst or trace:FILE",
        ),
        (TargetSettings, {"model": "echo", "arrivals": "trace:"}, "--arrivals trace:: expected"),
        (SearchSettings, {"trials": 10, "initial": 11}, "--initial 11"),
        (SearchSettings, {"trials": 0}, "--trials 0"),
        (SearchSettings, {"stop_ei": 1.0}, "--stop-ei 1.0"),
        (SearchSettings, {"epsilon": 1.5}, "--epsilon 1.5"),
        (MeasurementSettings, {"objective": "median"}, "--objective median"),
        (MeasurementSettings, {"seconds": 0.1}, "--seconds 0.1"),
        (MeasurementSettings, {"objective": "rate"}, "needs the p99 limit .* add --slo-ms MS"),
        (
            MeasurementSettings,
            {"constraints": ("p99 <= 5",)},
            "--constraint 'p99 <= 5': metric 'p99'",
        ),
        (MeasurementSettings, {"constraints": ("goodput_per_s >= 5",)}, "add --slo-ms"),
        (MeasurementSettings, {"objective": "goodput"}, "add --slo-ms"),
        (TargetSettings, {"model": "echo", "concurrency": 1, "limits": "both"}, "--limits both"),
        (
            TargetSettings,
            {"model": "echo", "concurrency": 1, "limits": "pod", "spawner": "docker"},
            "--limits pod: only Luthier's server of one model, with replicas as processes",
        ),
        (
            TargetSettings,
            {"model": "echo", "concurrency": 1, "limits": "pod", "engine": "command:x"},
            "an engine file limits the whole server of another engine",
        ),
        (StoreSettings, {"study": "../escape"}, "--study ../escape"),
        (StoreSettings, {"storage": "all.db"}, "--storage all.db"),
    ],
)
def test_wrong_values_name_their_option(group: type, values: dict[str, object], named: str) -> None:
    """A value out of its range is refused with the option as it was given."""
    with pytest.raises(UsageError, match=named):
        group(**values)


@given(trials=st.integers(1, 200), data=st.data())
def test_settings_survive_their_file(trials: int, data: st.DataObject) -> None:
    """What is written to settings.yaml is what is read from it."""
    settings = StudySettings(
        target=TargetSettings(model="echo", concurrency=data.draw(st.integers(1, 500))),
        search=SearchSettings(trials=trials, initial=data.draw(st.integers(1, trials))),
        measurement=MeasurementSettings(
            constraints=tuple(
                f"p99_ms <= {bound}" for bound in data.draw(st.sets(st.integers(1, 9)))
            )
        ),
    )
    text = yaml.safe_dump(settings.as_nested())
    assert StudySettings.from_nested(yaml.safe_load(text), source="settings.yaml") == settings


@pytest.mark.parametrize(
    ("target", "measurement", "said"),
    [
        ({}, {}, "use --concurrency N .closed loop., --rate R .open loop."),
        (
            {"concurrency": 4, "arrivals": "burst"},
            {},
            "--arrivals burst: only allowed in an open loop",
        ),
        ({"rate": 9.0}, {"objective": "throughput"}, "fixed by the rate of an open loop"),
        ({"arrivals": "trace:a.txt"}, {"objective": "time-per-item"}, "fixed by the rate"),
        ({"rate": 9.0}, {"objective": "rate", "slo_ms": 5.0}, "--rate 9: --find-rate searches for"),
        (
            {"concurrency": 2},
            {"load_clients": 3},
            "--load-clients 3: expected at most one for each of the 2",
        ),
    ],
)
def test_a_load_without_sense_is_refused(
    target: dict[str, object], measurement: dict[str, object], said: str
) -> None:
    """None at all, arrivals of a closed loop, and objectives that the load decides."""
    with pytest.raises(UsageError, match=said):
        StudySettings(
            target=TargetSettings(model="echo", **target),
            measurement=MeasurementSettings(**measurement),
        )


def test_a_load_is_closed_or_open() -> None:
    """A concurrency is held; with a rate, or a trace, it is the most in flight, and need not be given."""
    closed = TargetSettings(model="echo", concurrency=4)
    assert (closed.is_open, closed.in_flight) == (False, 4)
    for load in ({"rate": 9.0}, {"arrivals": "trace:a.txt"}, {"rate": 9.0, "arrivals": "burst"}):
        found = TargetSettings(model="echo", **load)
        assert (found.is_open, found.in_flight) == (True, MAX_IN_FLIGHT)
    assert TargetSettings(model="echo", concurrency=7, rate=9.0).in_flight == 7


def test_a_rate_that_is_searched_is_an_open_loop() -> None:
    """It needs neither concurrency nor rate, may have arrivals, and a launch takes several loads."""
    measurement = MeasurementSettings(objective="rate", slo_ms=5.0)
    for target in ({}, {"concurrency": 9}, {"arrivals": "burst"}, {"arrivals": "trace:a.txt"}):
        settings = StudySettings(
            target=TargetSettings(model="echo", **target), measurement=measurement
        )
        assert settings.is_open
    assert measurement.load_s == pytest.approx(15 * 1.3)


@pytest.mark.parametrize(
    ("rate_per_s", "arrivals", "said"),
    [
        (None, None, "concurrency 4, 3 items in each request"),
        (1250.0, None, "1,250 requests/s (poisson arrivals), 3 items in each request"),
        (0.5, "trace:/a/b.txt", "0.5 requests/s (trace arrivals), 3 items in each request"),
    ],
)
def test_a_load_in_words(rate_per_s: float | None, arrivals: str | None, said: str) -> None:
    """As the end of a sentence."""
    assert workload_in_words(4, 3, rate_per_s=rate_per_s, arrivals=arrivals) == said


def test_unknown_keys_get_the_nearest_name() -> None:
    """A misspelt key is refused with the file, the group and the right name."""
    tree = {"target": {"model": "echo", "concurency": 3}}
    with pytest.raises(UsageError, match=r"settings\.yaml, target.*did you mean 'concurrency'"):
        StudySettings.from_nested(tree, source="settings.yaml")


@pytest.mark.parametrize(
    ("group", "key", "value", "expected"),
    [
        ("target", "concurrency", "four", "concurrency holds 'four', expected a whole number"),
        ("search", "max_time_s", dt.date(2001, 1, 1), "expected a number$"),
        ("search", "trials", True, "trials holds True, expected a whole number"),
        ("measurement", "seconds", [2], r"seconds holds \[2\], expected a number"),
        ("target", "trust", 1, "trust holds 1, expected true or false"),
        ("store", "study", 7, "study holds 7, expected a text"),
        (
            "measurement",
            "constraints",
            "p99_ms <= 5",
            "constraints holds .*expected a list of texts",
        ),
        ("measurement", "constraints", [5], r"constraints holds \[5\], expected a list of texts"),
    ],
)
def test_a_value_of_another_kind_is_named(
    group: str, key: str, value: object, expected: str
) -> None:
    """With its file, its group, its key, and what it should be."""
    tree = StudySettings(target=TargetSettings(model="echo", concurrency=4)).as_nested()
    tree[group][key] = value
    with pytest.raises(UsageError, match=rf"settings\.yaml, {group}: .*{expected}"):
        StudySettings.from_nested(tree, source="settings.yaml")


def test_each_option_says_its_default() -> None:
    """The help of every option that has a default says so, and no flag is given twice."""
    flags = []
    for group in GROUPS.values():
        for field, option in options(group):
            flags.append(option.flag)
            if field.default is not field.default_factory:
                assert "default" in option.help or field.name in {"model", "concurrency"}
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("sampler", "trials", "initial", "first"),
    [
        ("random", 50, None, 25),
        ("random", 10, None, 5),
        ("gp", 50, None, 8),
        ("structured", 50, None, 2),
        ("structured", 3, None, 1),
        ("structured", 1, None, 1),
        ("gp", 10, 10, 10),
    ],
)
def test_the_initial_launches_are_half_of_a_small_budget(
    sampler: str, trials: int, initial: int | None, first: int
) -> None:
    """The sampler's own number, or half of the trials where that is fewer, unless it was asked for."""
    settings = SearchSettings(sampler=sampler, trials=trials, initial=initial)
    assert settings.first_trials == first


def test_blocks_are_whole_quota_periods() -> None:
    """One each, and more only where there would be more than a hundred."""
    assert MeasurementSettings().block_s == pytest.approx(0.1)
    assert MeasurementSettings(seconds=10.0).block_s == pytest.approx(0.1)
    assert MeasurementSettings(seconds=60.0).block_s == pytest.approx(0.6)
    assert MeasurementSettings(seconds=61.0).block_s == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("changes", "measured_s"),
    [
        ({}, 0.6),
        ({"objective": "throughput"}, 0.6),
        ({"objective": "p99"}, 2.0),
        ({"objective": "mean,cost"}, 2.0),
        ({"slo_ms": 50.0}, 2.0),
        ({"constraints": ("mean_ms <= 20",)}, 2.0),
        ({"objective": "p99", "seconds": 0.8}, 0.8),
    ],
)
def test_launches_are_short_where_the_mean_alone_decides(
    changes: dict[str, Any], measured_s: float
) -> None:
    """Tails, limits and what is counted per launch get longer ones, and what was asked for counts."""
    assert MeasurementSettings(**changes).measured_s == measured_s


def test_the_slo_is_a_limit_on_p99_unless_answers_within_it_are_counted() -> None:
    """As a constraint it is judged like any other."""
    both = MeasurementSettings(slo_ms=50.0, constraints=("mean_ms <= 20",))
    assert [limit.text for limit in both.limits] == ["p99_ms <= 50", "mean_ms <= 20"]
    assert both.limits[0].option == "--slo-ms"
    assert MeasurementSettings(objective="goodput", slo_ms=50.0).limits == ()
    counted = MeasurementSettings(slo_ms=50.0, constraints=("goodput_per_s >= 100",))
    assert [limit.text for limit in counted.limits] == ["goodput_per_s >= 100"]
