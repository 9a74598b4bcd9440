"""What a person sees: plain lines without a terminal, knobs by short names, one line a launch."""

from __future__ import annotations

import datetime as dt
import io

import rich.console

from tests.fakes import studies
from tuner.progress import Plan, Progress, short_names
from tuner.values import Configuration


def test_lines_of_a_study() -> None:
    """Plan first; then each launch with origin, latency, changed knobs, the best and the time left."""
    record = studies.study()
    stream = io.StringIO()
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True, width=60)
    progress = Progress(console, default=record.default, objective="mean")
    plan = Plan(
        name="s",
        model="toy",
        concurrency=20,
        sampler="gp",
        cells=672,
        trials=50,
        initial=25,
        done=3,
        pairs=10,
        expected_s=200,
        max_time_s=600,
    )
    progress.plan(plan, now=dt.datetime(2026, 1, 1, 12, 0, 0, tzinfo=dt.UTC))
    ok = next(trial for trial in record.trials if trial.measurement is not None)
    lost = next(trial for trial in record.trials if trial.outcome.status == "infeasible")
    progress.trial(ok, best=ok, left_s=150)
    progress.trial(lost, best=ok, left_s=147, who="gp")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "672 configurations" in lines[1]
    assert "24 spread" in lines[1]
    assert "3 of them done" in lines[1]
    assert "12:03:20" in lines[2]
    assert lines[3].endswith("2 min 30 s left")
    assert f"infeasible ({lost.outcome.cause})" in lines[4]
    assert "\x1b" not in stream.getvalue()


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
