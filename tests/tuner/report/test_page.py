import base64
import dataclasses
import functools
import hashlib
import html
import re

import plotly.offline
import pytest

from tests.fakes import studies
from tuner.report import page, page_header
from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.measurement import Cost
from tuner.values.trial import Outcome

STUDY = studies.study()
LIMIT_BYTES = 6_000_000
HOSTILE = '</script><script>alert(1)</script><img src=http://x onerror="a\'">&amp;'


@functools.cache
def made_of_study():
    """The page of `STUDY`, rendered once."""
    return page.render(STUDY)


def own(text):
    """The page without the code of Plotly, which holds addresses that are never asked."""
    start = text.index(plotly.offline.get_plotlyjs())
    return text[:start] + text[start + len(plotly.offline.get_plotlyjs()) :]


def test_the_answer_comes_first(read_page):
    """Model, concurrency, verdict with ratio and interval, and both sides' figures open the page."""
    text = read_page(made_of_study()).text
    opening = text[: text.index("Objective of every trial")]
    assert "resnet at concurrency 20" in opening
    assert STUDY.verdict.text in opening
    assert "× 0.317 (0.303 to 0.330)" in opening
    for note in STUDY.notes:
        assert note in opening
    for knob in STUDY.knobs:
        assert knob.name in opening


def test_a_worse_p99_is_said_and_is_not_green(read_page):
    """Beside a mean that shows no difference it is a thing to know, and its card says "worse"."""
    verdict = dataclasses.replace(
        STUDY.verdict,
        outcome="no difference shown",
        interval=Interval(low=0.9, high=1.1),
        throughput_interval=Interval(low=0.9, high=1.1),
        p99_ratio=1.45,
        p99_interval=Interval(low=1.14, high=1.86),
    )
    made = page.render(dataclasses.replace(STUDY, verdict=verdict))
    text = read_page(made).text
    assert "The p99 latency of the best is worse than that of the default" in text
    assert "best over default × 1.45 (1.14 to 1.86): worse" in text
    cards = made[made.index('class="cards"') : made.index('class="notes"')]
    assert cards.count('class="worse"') == 1
    assert 'class="better"' not in cards
    assert "p99 latency of the best is worse" not in read_page(made_of_study()).text


def test_more_cpu_for_a_request_is_said(read_page):
    """Unless a cost is the objective, which it is part of."""
    told = "The best holds more CPU than the default"
    dear_one = Cost(cpu_s=9.0, memory_mib_s=1.0, gpu_s=0.0, price=9.0)
    cheap_one = dataclasses.replace(dear_one, cpu_s=7.0)
    verdict = dataclasses.replace(
        STUDY.verdict,
        **{
            role: tuple(dataclasses.replace(one, cost=cost) for one in getattr(STUDY.verdict, role))
            for role, cost in (("default", cheap_one), ("best", dear_one))
        },
    )
    dear = dataclasses.replace(STUDY, verdict=verdict)
    assert told in read_page(page.render(dear)).text
    assert told not in read_page(page.render(dataclasses.replace(dear, objective="cost"))).text
    assert told not in read_page(made_of_study()).text


def test_every_trial_is_in_the_table(read_page):
    """Each trial has a row with its configuration, and its reason where it has no figure."""
    rows = {row[0]: row for row in read_page(made_of_study()).rows if len(row) > 12}
    for trial in STUDY.trials:
        row = rows[str(trial.number)]
        assert trial.outcome.reason in row[2]
        assert str(trial.configuration["batching.max_size"]) in row


def test_the_page_asks_nothing_of_a_network(edge_page, read_page):
    """No attribute holds an address, no style imports one, and the policy forbids every request."""
    parsed = read_page(edge_page)
    assert not [v for k, v in parsed.attributes if k in {"src", "srcset", "action", "data"}]
    assert all(v.startswith("#") for k, v in parsed.attributes if k == "href")
    assert not re.search(r"https?:|@import|url\(", own(edge_page))
    (policy,) = [v for _, v in parsed.attributes if v and "default-src" in v]
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert "link" not in parsed.tags


def test_no_script_runs_but_those_of_the_page(edge_page):
    """The policy names the digests of the two that are there; one that a name in a study brought in has none."""
    found = re.findall(r"<script([^>]*)>(.*?)</script>", edge_page, re.DOTALL)
    code = [text for attributes, text in found if not attributes]
    assert len(code) == 2
    assert all("application/json" in attributes for attributes, _ in found if attributes)
    policy = html.unescape(re.findall(r'content="(default-src[^"]*)"', edge_page)[0])
    (sources,) = [one for one in policy.split("; ") if one.startswith("script-src ")]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    named = " ".join(f"'sha256-{one}'" for one in digests)
    assert sources == f"script-src {named}"
    assert "\r" not in edge_page, "browsers read it as another character"


def test_charts_are_never_offered_to_a_server():
    """Plotly's button that uploads a chart is on unless it is turned off."""
    text = page.render(studies.study(trials=1))
    assert "showSendToCloud: false" in text
    assert 'plotlyServerURL: ""' in text


def test_hostile_names_stay_text(read_page):
    """Names, reasons, notes, choices and facts with tags in them appear as text and nowhere as tags."""
    knob = dataclasses.replace(
        STUDY.knobs[-1], name=HOSTILE, unit=HOSTILE, values=(HOSTILE, "b"), default=HOSTILE
    )
    trials = tuple(
        dataclasses.replace(
            trial,
            origin=HOSTILE if trial.number > 40 else trial.origin,
            configuration=Configuration({HOSTILE: HOSTILE if trial.number % 2 else "b"}),
            outcome=dataclasses.replace(trial.outcome, reason=HOSTILE)
            if trial.measurement is None
            else trial.outcome,
        )
        for trial in STUDY.trials
    )
    study = dataclasses.replace(
        STUDY,
        name=HOSTILE,
        model=HOSTILE,
        sampler=HOSTILE,
        knobs=(knob,),
        trials=trials,
        default=Configuration({HOSTILE: HOSTILE}),
        best=Configuration({HOSTILE: "b"}),
        verdict=dataclasses.replace(STUDY.verdict, text=HOSTILE),
        notes=(HOSTILE,),
        environment={HOSTILE: {HOSTILE: HOSTILE}},
        settings={HOSTILE: [HOSTILE]},
    )
    parsed = read_page(page.render(study))
    assert "img" not in parsed.tags
    assert [name for name in parsed.scripts if name.startswith("code-")] == [
        f"code-{len(parsed.scripts) - 1}"
    ]
    assert HOSTILE in parsed.text
    for figure in parsed.figures.values():
        assert "<script" not in str(figure)
        assert "<img" not in str(figure)


def test_awkward_studies_have_a_page(edge_page, read_page):
    """The page is well formed and small enough, with a heading per section, whatever is missing."""
    assert len(edge_page.encode()) < LIMIT_BYTES
    parsed = read_page(edge_page)
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("h2") == 5
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_a_large_study_stays_small():
    """300 trials and long records fit in the bound, because figures are thinned."""
    study = studies.study(trials=300, initial=50)
    assert len(study.trials) == 300
    assert len(page.render(study).encode()) < LIMIT_BYTES


def test_equal_studies_give_equal_pages():
    """The page is a function of the study: no clock, no random draw."""
    first, second = (studies.study(seed=9, trials=16) for _ in range(2))
    assert page.render(first) == page.render(second)


def test_a_study_without_verdict_says_so(read_page):
    """Figures of the search are not passed off as a comparison."""
    text = read_page(page.render(studies.study(seed=3, has_verdict=False))).text
    assert "not re-measured" in text
    assert "no interval" in text


@pytest.mark.parametrize(
    "note", ["Payloads are synthetic.", "CPU limits are not enforced: no cgroup."]
)
def test_notes_that_change_the_meaning_are_in_bold(note):
    """A warning about payloads or limits is set off from the other notes."""
    assert f"<strong>{note}</strong>" in page_header.notes((note, "Plain."))


def test_failures_are_told_by_cause(read_page):
    """A study in which nothing worked says why, first."""
    broken = Outcome(status="failed", cause="crash", reason="replica 0 ended with signal 11")
    study = studies.all_failed(trials=4)
    mixed = dataclasses.replace(
        study, trials=(dataclasses.replace(study.trials[0], outcome=broken), *study.trials[1:])
    )
    text = read_page(page.render(mixed)).text
    assert "No configuration worked: oom 3, crash 1; for example trial 1: " in text
    assert broken.reason in text
    assert "No trial gave a figure, so there is nothing to draw" in text
    assert not read_page(page.render(mixed)).figures


def test_commands_stand_in_blocks_of_code(read_page):
    """They are to be copied; an unfinished study has none, because it recommends nothing yet."""
    study = studies.study(seed=3, has_verdict=False)
    text = page.render(study)
    for command in (
        "python -m serving --model resnet --settings /srv/runs/resnet-20/best.yaml",
        "tune export /srv/runs/resnet-20 --trial ",
    ):
        assert f"<pre><code>{command}" in text
    running = page.render(dataclasses.replace(study, is_finished=False))
    assert "<pre>" not in running
    assert "The study is not finished: " in read_page(running).text


def test_the_time_of_the_whole_study_is_told(read_page):
    """Not only of launches that worked."""
    text = read_page(page.render(dataclasses.replace(STUDY, used_s=222.0))).text
    assert "51 trials, 3 min 42 s in all." in text


def test_an_objective_of_its_own_has_a_column_of_all_trials():
    """The spread is in no study's table but in one that makes it best."""
    column = "spread (p95 - p5) of latencies"
    shown, plain = (
        page.render(studies.study(trials=6, objective=name)) for name in ("consistency", "mean")
    )
    assert shown.count("<th") == plain.count("<th") + 1
    assert column in shown
