"""Plans of load phases."""

import json

import pytest

from tuner.load_generator.plan import PhasePlan, Warmup


@pytest.mark.parametrize(
    "plan",
    [
        PhasePlan(host="h", port=1, concurrency=2, seconds=0.5),
        PhasePlan(
            host="h", port=1, concurrency=2, seconds=1, rate_per_s=9.5, spread="constant", seed=3
        ),
        PhasePlan(
            host="h",
            port=1,
            concurrency=2,
            seconds=1,
            rate_per_s=3,
            spread="trace",
            offsets_s=(0.5, 0.75, 4.0),
            cuts_overload=True,
        ),
        PhasePlan(
            host="h", port=1, concurrency=2, requests=9, warmup=Warmup(seconds=0, round_trips=0)
        ),
    ],
)
def test_a_plan_survives_json(plan):
    """What the client's process reads is what the tuner wrote."""
    assert PhasePlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


@pytest.mark.parametrize("changes", [{}, {"seconds": 1.0, "requests": 5}])
def test_a_plan_without_sense_is_refused(changes):
    """Neither or both of seconds and requests."""
    with pytest.raises(ValueError, match="one of the two"):
        PhasePlan(**{"host": "h", "port": 1, "concurrency": 1, **changes})
