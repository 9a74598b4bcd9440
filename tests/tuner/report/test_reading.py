import dataclasses

import pytest

from tests.fakes import studies
from tuner.report import reading


def test_the_best_so_far_never_worsens():
    """A minimised objective falls and a maximised one rises, from the first ok trial to the last."""
    for objective, sign in (("mean", -1), ("throughput", 1)):
        steps = reading.best_so_far(studies.study(seed=2, objective=objective))
        values = [sign * value for _, value in steps]
        assert values == sorted(values)
        assert values[-1] > values[0]


def test_launches_come_from_the_verdict_where_there_is_one():
    """The verdict's launches stand for a role; without one, those of the search."""
    study = studies.study()
    assert reading.launches(study, "best").measurements == study.verdict.best
    assert reading.launches(study, "best").is_verified
    bare = dataclasses.replace(study, verdict=None)
    assert reading.launches(bare, "default").measurements == (study.trials[0].measurement,)
    assert not reading.launches(bare, "default").is_verified


def test_middle_figures_agree_with_the_ratio():
    """Geometric means of best and default divide to the verdict's ratio."""
    study = studies.study(has_records=False)
    sides = [reading.launches(study, role).figure("mean_ms").middle for role in reading.ROLES]
    assert sides[1] / sides[0] == pytest.approx(study.verdict.ratio)


def test_cautions_name_what_went_wrong():
    """Failures by cause, loads that were off, errors and short launches are said."""
    study = studies.study()
    off = dataclasses.replace(study.trials[0].measurement, little_error=0.2, errors=3, requests=100)
    first = dataclasses.replace(study.trials[0], measurement=off)
    doubtful = dataclasses.replace(study, verdict=None, trials=(first, *study.trials[1:]))
    text = " ".join(reading.cautions(doubtful))
    assert "oom 9" in text
    assert "more than 5.0 % off" in text
    assert "3 requests failed" in text
    assert "as few as 100 requests" in text


def test_every_awkward_study_has_a_headline(edge_study):
    """The answer is one sentence, whatever happened."""
    assert reading.headline(edge_study).endswith(".")
