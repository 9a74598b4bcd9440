import dataclasses

import numpy as np
import pytest

from tests.fakes import studies
from tuner.report import terminal
from tuner.report.study import headline, study_notes, study_view
from tuner.study.budget import Budget
from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Cost
from tuner.values.study_record import SharedModels
from tuner.values.trial import Outcome


def test_the_best_so_far_never_worsens():
    """A minimised objective falls and a maximised one rises, from the first ok trial to the last."""
    for objective, sign in (("mean", -1), ("throughput", 1)):
        steps = study_view.best_so_far(studies.study(seed=2, objective=objective))
        values = [sign * value for _, value in steps]
        assert values == sorted(values)
        assert values[-1] > values[0]


def test_launches_come_from_the_verdict_where_there_is_one():
    """The verdict's launches stand for a role; without one, those of the search."""
    study = studies.study()
    assert study_view.arm_measurements(study, "best").measurements == study.verdict.best
    assert study_view.arm_measurements(study, "best").is_verified
    bare = dataclasses.replace(study, verdict=None)
    assert study_view.arm_measurements(bare, "default").measurements == (
        study.trials[0].measurement,
    )
    assert not study_view.arm_measurements(bare, "default").is_verified


def test_middle_figures_agree_with_the_ratio():
    """Geometric means of best and default divide to the verdict's ratio."""
    study = studies.study(has_records=False)
    sides = [
        study_view.arm_measurements(study, role).figure("mean_ms").middle
        for role in study_view.ARMS
    ]
    assert sides[1] / sides[0] == pytest.approx(study.verdict.ratio)


def test_cautions_name_what_went_wrong():
    """Failures by cause, loads that were off, errors and short launches are said."""
    study = studies.study()
    off = dataclasses.replace(
        study.trials[0].measurement, little_error=0.2, errors=3, p99_effective=100.0
    )
    first = dataclasses.replace(study.trials[0], measurement=off)
    doubtful = dataclasses.replace(study, verdict=None, trials=(first, *study.trials[1:]))
    text = " ".join(study_notes.cautions(doubtful))
    assert "oom 9" in text
    assert "more than 5.0 % off" in text
    assert "3 requests failed" in text
    assert "No p99" not in text, "where it is not the objective, that speaks against nothing"
    said = " ".join(study_notes.remarks(doubtful))
    assert "No p99 of the default: p99 rests on 100 effective requests" in said


def tailed(slower, *, effective=400.0):
    """A study whose launches are too short for a p99 each, the best's histograms `slower` times the default's."""
    study = studies.study(has_records=False)
    rng = np.random.default_rng(1)
    default, best = (
        tuple(
            dataclasses.replace(
                one,
                p99_effective=effective,
                histogram=LatencyHistogram.of(factor * rng.lognormal(size=2000)),
            )
            for one in side
        )
        for side, factor in ((study.verdict.default, 1.0), (study.verdict.best, slower))
    )
    changes = {"default": default, "best": best, "p99_ratio": None, "p99_interval": UNKNOWN}
    return dataclasses.replace(study, verdict=dataclasses.replace(study.verdict, **changes))


def test_a_longer_tail_of_the_best_is_said_beside_the_verdict():
    """Of all launches together where each is too short, with what to do; not where the intervals touch."""
    (said,) = [
        text for text in study_notes.warnings(tailed(2.5)) if "p99 of the best is worse" in text
    ]
    assert "--objective p99" in said
    assert "of all evaluations together" in said
    assert any("note: The p99 of the best" in text for text in terminal.lines(tailed(2.5), {}))
    for study in (tailed(1.0), tailed(0.6), tailed(2.5, effective=80.0)):
        assert not any("p99 of the best" in text for text in study_notes.warnings(study))


def test_a_p99_that_the_pairs_show_to_be_worse_is_said():
    """With the ratio and its interval; not where it may be chance."""
    study = studies.study()
    for interval, is_said in (
        (Interval(low=1.1, high=1.6), True),
        (Interval(low=0.9, high=2), False),
    ):
        verdict = dataclasses.replace(study.verdict, p99_ratio=1.3, p99_interval=interval)
        said = study_notes.warnings(dataclasses.replace(study, verdict=verdict))
        assert any("of the best is worse than" in text for text in said) == is_said


def shared_study(**figures):
    """A study of a scenario, all of whose launches have these figures."""
    study = studies.study(has_records=False)
    default, best = (
        tuple(dataclasses.replace(one, **figures) for one in side)
        for side in (study.verdict.default, study.verdict.best)
    )
    return dataclasses.replace(
        study,
        objective="goodput",
        rate_per_s=100.0,
        shared=SharedModels(groups={"a": ("/models/net.onnx", 3), "b": ("mnist", 2)}, settings={}),
        verdict=dataclasses.replace(study.verdict, default=default, best=best),
    )


def test_clients_that_were_behind_their_schedule_are_said():
    """Of the launches that decide, for each side; a hundredth is nothing."""
    late = "were sent more than 1 ms after they were due"
    assert not any(late in text for text in study_notes.warnings(shared_study(late_share=0.009)))
    (said,) = [text for text in study_notes.warnings(shared_study(late_share=0.04)) if late in text]
    assert "4.0 % of the default's and 4.0 % of the best's" in said


def test_a_scenario_is_told_by_what_was_due_and_answered():
    """Offered is all that was due; where all of it is in time already, that is said."""
    figures = {"requests": 90, "refused": 6, "errors": 4, "seconds": 2.0}
    study = shared_study(**figures, goodput=45.0)
    assert study.offered_per_s == pytest.approx(50.0)
    assert "5 models on shared replicas (3 × net.onnx, 2 × mnist)" in study_view.models(study)
    full = "The default answers everything in time"
    assert not any(full in text for text in study_notes.remarks(study))
    most = shared_study(**{**figures, "goodput": 50.0})
    assert any(full in text for text in study_notes.remarks(most))
    assert studies.study().offered_per_s is None


def test_every_awkward_study_has_a_headline(edge_study):
    """The answer is one sentence, whatever happened."""
    assert headline.headline(edge_study).endswith(".")


def same(**changes):
    """A study whose best is its default."""
    whole = studies.study(trials=12)
    return dataclasses.replace(
        whole, best=whole.default, verdict=None, failure_counts={}, **changes
    )


def test_a_default_that_is_best_says_of_how_many():
    """It is another answer where nothing else was launched, or where nothing else worked."""
    study = same()
    count = len({trial.configuration for trial in study.trials})
    assert f"the best of {count} configurations" in headline.headline(study)
    alone = dataclasses.replace(study, trials=study.trials[:1])
    assert headline.headline(alone).startswith("Nothing was searched: only the default")
    broken = tuple(
        trial
        if trial.configuration == study.default
        else dataclasses.replace(
            trial, measurement=None, outcome=studies.all_failed().trials[0].outcome
        )
        for trial in study.trials
    )
    only = dataclasses.replace(study, trials=broken)
    assert f"the only one of {count} configurations that worked" in headline.headline(only)


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (same(), "the default is the best of 12 trials so far"),
        (
            studies.study(has_verdict=False, trials=12),
            "one of 12 trials so far is better than the default",
        ),
        (studies.study(trials=12), "the best is being re-evaluated"),
        (dataclasses.replace(same(), trials=(), best=None), "nothing has been measured yet"),
        (
            studies.all_failed(),
            "none of 8 trials so far worked: oom 8; for example trial 0: replica",
        ),
    ],
)
def test_an_unfinished_study_has_no_answer(study, said):
    """Neither a headline nor a recommendation, nor a colour."""
    running = dataclasses.replace(study, is_finished=False)
    assert headline.headline(running).startswith("The study is not finished: ")
    assert said in headline.headline(running)
    assert headline.advice(running) == ()
    assert headline.to_try(running) is None
    assert headline.tone(running) is None


def test_a_study_in_which_nothing_worked_gives_its_reasons():
    """The most frequent cause first, and one trial in its own words."""
    study = studies.all_failed(trials=4)
    crash = Outcome(status="failed", cause="crash", reason="replica 0 ended with signal 11")
    first = dataclasses.replace(study.trials[0], outcome=crash)
    mixed = dataclasses.replace(study, trials=(first, *study.trials[1:]))
    assert headline.headline(mixed) == (
        "No configuration worked: oom 3, crash 1; for example trial 1: "
        f"{study.trials[1].outcome.reason}."
    )
    assert not any("gave no figure" in text for text in study_notes.cautions(mixed)), (
        "it is said above"
    )


def test_notes_for_information_are_no_warnings():
    """A budget that is used up speaks against nothing."""
    budget = Budget(trials=12, initial=6, max_time_s=600, load_s=2.5, pairs=10)
    used_up = budget.stop_reason(12, 0.0, [])
    checked = "answers checked: 59 of 64 labelled items right (92%)"
    early = budget.stop_reason(3, 599.0, [3.0])
    accuracy = "accuracy of the model's variants: resnet8 0.907, resnet20 0.93"
    notes = (used_up, checked, early, accuracy, "limits: none")
    study = dataclasses.replace(studies.study(), notes=notes)
    assert study_notes.warnings(study)[:2] == (early, "limits: none")
    assert study_notes.remarks(study)[:3] == (used_up, checked, accuracy)


def test_limits_that_the_default_has_and_the_server_has_not_are_said():
    """Else `default` is taken for the server as it comes."""
    text = study_notes.meaning_of_default(studies.study())
    assert "with replica.cpu = 1 and replica.memory_mb = 1024" in text
    assert study_notes.meaning_of_default(dataclasses.replace(studies.study(), knobs=())) is None


def test_a_luckier_trial_than_the_best_is_found():
    """The best by all measurements need not have the best one."""
    study = studies.study(trials=12)
    assert study_view.is_luckier_than_best(study) is None
    lowest = min(study_view.successful_trials(study.trials), key=lambda trial: trial.objective)
    assert study_view.is_luckier_than_best(dataclasses.replace(study, best=study.default)) == lowest


def test_a_study_that_was_told_prices_says_what_its_gain_is_worth(tmp_path):
    """In the currency of its price file; without one, of nothing."""
    plain = studies.study(trials=20, has_records=False)
    cost = Cost(cpu_s=1.0, memory_mib_s=1.0, gpu_s=0.0, price=0.02)
    sides = {
        name: tuple(
            dataclasses.replace(one, cost=dataclasses.replace(cost, price=price))
            for one in getattr(plain.verdict, name)
        )
        for name, price in (("default", 0.02), ("best", 0.012))
    }
    verdict = dataclasses.replace(plain.verdict, **sides)
    told = dataclasses.replace(plain, verdict=verdict, folder=str(tmp_path))
    assert headline.headline(told) == verdict.text
    (tmp_path / "prices.yaml").write_text("core_hour: 0.04\ngib_hour: 0.005\ncurrency: EUR\n")
    assert headline.headline(told).endswith("1,000 requests cost 0.0120 EUR instead of 0.0200.")


def test_what_launches_have_of_their_own_is_told():
    """Where they were loaded in slices; nothing where nobody knows."""
    plain = studies.study(trials=20, has_records=False)
    assert not any("between evaluations" in text for text in study_notes.remarks(plain))
    nothing = dataclasses.replace(
        plain, verdict=dataclasses.replace(plain.verdict, evaluation_sd=0.0004)
    )
    assert not any("between evaluations" in text for text in study_notes.remarks(nothing))
    told = dataclasses.replace(
        plain, verdict=dataclasses.replace(plain.verdict, evaluation_sd=0.012)
    )
    assert any("varies by 1.2 % between evaluations" in text for text in study_notes.remarks(told))
