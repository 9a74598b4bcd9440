"""What a person sees: plain lines without a terminal, knobs by short names, one line a launch."""

from __future__ import annotations

import datetime as dt
import io

import pytest
import rich.console

from tests.fakes import studies
from tuner.study.progress import Progress, StudyPlan, short_names
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import OK


def test_lines_of_a_study() -> None:
    """Plan first; then each launch with origin, latency, changed knobs, the best and the time left."""
    record = studies.study()
    stream = io.StringIO()
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True, width=60)
    progress = Progress(console, default=record.default, objective="mean")
    plan = StudyPlan(
        name="s",
        model="toy",
        load="concurrency 20",
        sampler="gp",
        cells=672,
        trials=50,
        initial=25,
        done=3,
        pairs=10,
        expected_s=200,
        max_time_s=600,
        fits=50,
    )
    progress.plan(plan, now=dt.datetime(2026, 1, 1, 12, 0, 0, tzinfo=dt.UTC))
    ok = next(trial for trial in record.trials if trial.measurement is not None)
    lost = next(trial for trial in record.trials if trial.outcome.status == "infeasible")
    progress.trial(ok, best=ok, left_s=150)
    progress.trial(lost, best=ok, left_s=147, who="gp")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "672 configurations" in lines[1]
    assert "24 to begin with" in lines[1]
    assert "3 of them done" in lines[1]
    assert "12:03:20" in lines[2]
    assert lines[3].endswith("2 min 30 s left")
    assert f"infeasible ({lost.outcome.cause})" in lines[4]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("fits", "said"),
    [
        (
            12,
            "the longest time leaves time for about 12 of 50 evaluations; all would take about 3 min",
        ),
        (1, "leaves time for the default only, so nothing is searched; all would take about"),
    ],
)
def test_too_little_time_is_said_before_it_is_spent(fits: int, said: str) -> None:
    """With what would be enough."""
    stream = io.StringIO()
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True, width=60)
    plan = StudyPlan(
        name="s",
        model="toy",
        load="concurrency 20",
        sampler="gp",
        cells=672,
        trials=50,
        initial=25,
        done=0,
        pairs=10,
        expected_s=200,
        max_time_s=60,
        fits=fits,
    )
    progress = Progress(console, default=studies.default(), objective="mean")
    progress.plan(plan, now=dt.datetime(2026, 1, 1, 12, 0, 0, tzinfo=dt.UTC))
    lines = stream.getvalue().splitlines()
    assert "takes about 1 min 0 s, until about 12:01:00 (limit 1 min 0 s)" in lines[2]
    assert said in lines[3]


def test_a_best_that_is_not_the_lowest_is_explained() -> None:
    """Else a reader takes the verification of another configuration for a mistake."""
    record = studies.study()
    stream = io.StringIO()
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True)
    progress = Progress(console, default=record.default, objective="mean")
    progress.print_recommendation({**record.default, "replica.count": 2}, record.trials[5])
    assert stream.getvalue() == (
        "best by all measurements: count=2; the best single one, trial 5, is partly luck\n"
    )


def test_a_fresh_start_says_how_much_is_left() -> None:
    """As the lines of the search do."""
    record = studies.study()
    stream = io.StringIO()
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True)
    progress = Progress(console, default=record.default, objective="mean")
    last = RoundEvaluation(role="best", outcome=OK, measurement=record.trials[0].measurement)
    progress.verification(1, 4, last, left_s=14.2)
    assert stream.getvalue().startswith("verify 1/4 best")
    assert stream.getvalue().endswith("| 14 s left at most\n")


def test_short_names_stay_unlike() -> None:
    """The last word of a name, unless another knob ends with it too."""
    found = short_names(["replica.count", "batching.policy", "routing.policy"])
    assert found == {
        "replica.count": "count",
        "batching.policy": "batching.policy",
        "routing.policy": "routing.policy",
    }


def test_only_differences_from_the_default_are_shown() -> None:
    """The default is called so; anything else is told by what differs."""
    default = Configuration({"replica.count": 1, "replica.cpu": 1.0})
    console = rich.console.Console(file=io.StringIO())
    progress = Progress(console, default=default, objective="mean")
    assert progress.differences(default) == "the default"
    changed = Configuration({"replica.count": 2, "replica.cpu": 1.0})
    assert progress.differences(changed) == "count=2"
