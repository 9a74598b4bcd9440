import dataclasses
import pathlib
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving.settings import SETTINGS, ServingSettings, sources
from tests.fakes import studies
from tuner import advice, export
from tuner.errors import UsageError
from tuner.values.configuration import Configuration

FORMED = {
    "model.shapes": ["image=3x640x640", "sequence=16..512 state=2x128"],
    "model.pad": ["ids=0 mask=0", "x=-1.5"],
    "model.values": ["ids=0..30521 mask=1"],
}
"""Texts that have a form of their own."""
STUDY = studies.study(trials=12)


def text_of(study):
    """The file with what the study advises."""
    return export.best_files(study, advice.advise(study))["best.yaml"]


def settings_values():
    """Strategy: a valid value for every knob of the groups that a study tunes."""

    def value(knob):
        if knob.choices:
            return st.sampled_from(knob.choices)
        if knob.name in FORMED:
            return st.sampled_from(FORMED[knob.name])
        if str in knob.kinds:
            return st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)
        low, high = knob.low, knob.high
        if int in knob.kinds:
            return st.integers(int(low), int(high))
        return st.floats(low, high)

    groups = {"replica", "model", "batching", "cache"}
    tuned = {name: knob for name, knob in SETTINGS.items() if name.split(".")[0] in groups}
    return st.fixed_dictionaries({}, optional={name: value(knob) for name, knob in tuned.items()})


def resolved(text, tmp_path):
    file = tmp_path / "best.yaml"
    file.write_text(text, encoding="utf-8")
    return sources.resolve(file=file, environment={})


@pytest.mark.parametrize("seed", range(3))
def test_the_server_reads_what_was_exported(seed, tmp_path):
    """`serving.settings.sources.resolve` reads the file as it is and gives the best configuration."""
    study = studies.study(seed=seed, trials=30)
    flat = resolved(export.export(study, "serving")["best.yaml"], tmp_path).flat()
    assert {name: flat[name] for name in study.best} == dict(study.best)


@given(values=settings_values())
def test_every_valid_configuration_survives_the_file(values):
    """Settings from the exported text equal settings from the configuration itself."""
    study = dataclasses.replace(STUDY, best=Configuration(values))
    data = yaml.safe_load(text_of(study)) or {}
    expected = ServingSettings().with_changes(values)
    assert ServingSettings().with_changes(data) == expected


def test_a_knob_that_is_no_setting_stands_in_the_head_only(tmp_path):
    """It is named in a comment and is not handed to the server."""
    best = Configuration({**STUDY.best, "engine.workers": 3})
    text = text_of(dataclasses.replace(STUDY, best=best))
    assert "#   engine.workers: 3" in text
    assert "engine" not in yaml.safe_load(text)
    assert resolved(text, tmp_path)


def test_the_head_says_where_the_settings_come_from():
    """Study, model, concurrency, figures, verdict and notes stand in the comment head."""
    text = text_of(STUDY)
    for part in (STUDY.name, STUDY.model, "concurrency 20", STUDY.verdict.text, *STUDY.notes):
        assert part in text
    assert len(re.findall(r"requests/s \[\d+(\.\d+)?, \d+(\.\d+)?\] \(5 evaluations", text)) == 2


def test_the_head_has_the_load_and_the_studys_own_objective():
    """A client batch is said; an objective beside mean, p99 and throughput comes before them."""
    study = dataclasses.replace(studies.study(trials=12, objective="consistency"), client_batch=4)
    text = text_of(study)
    assert "at concurrency 20, 4 items in each request, by `tune`" in text
    assert "best: consistency " in text
    assert "consistency" not in text_of(STUDY)


def test_the_command_in_the_head_works_from_any_folder():
    """It names the model as it was given, and the file by where it is, quoted for a shell."""
    settings = {"target": {"model": "/my models/mlp.onnx"}}
    own = dataclasses.replace(STUDY, settings=settings, folder="/runs/own")
    use = "# Use: python -m serving --model '/my models/mlp.onnx' --settings "
    assert f"{use}/runs/own/best.yaml\n" in text_of(own)
    out = pathlib.PurePath("/else where")
    assert f"{use}'/else where/best.yaml'\n" in export.export(own, "serving", out=out)["best.yaml"]


def test_without_a_verdict_the_head_says_so():
    """Figures of the search are given as what they are."""
    study = studies.study(trials=12, has_verdict=False)
    text = text_of(study)
    assert "Not re-evaluated" in text
    assert f"# Stay with the default: {advice.REASONS['not measured']}." in text
    assert ServingSettings().with_changes(yaml.safe_load(text)) == ServingSettings().with_changes(
        study.default
    )
    assert "Verdict" not in text


@given(name=st.text(), note=st.text())
def test_no_text_can_leave_the_comments(name, note):
    """Whatever a study is called, the file holds the configuration and nothing else."""
    study = dataclasses.replace(
        STUDY, name=name, model=name, notes=(note, "a\nreplica: {count: 64}")
    )
    text = text_of(study)
    assert (
        ServingSettings().with_changes(yaml.safe_load(text)).flat()["replica.count"]
        == (STUDY.best["replica.count"])
    )


def test_a_study_without_a_working_configuration_has_nothing_to_export():
    """The error names the study and the way to the reasons."""
    with pytest.raises(UsageError, match="tune report resnet-20"):
        export.export(studies.all_failed(), "serving")


def test_an_unknown_target_names_the_nearest():
    """The error lists the targets and guesses the one that was meant."""
    with pytest.raises(UsageError, match=r"'servin' is not known, did you mean 'serving'\?"):
        export.export(STUDY, "servin")


def test_a_trial_is_exported_on_request():
    """Its configuration and its figures, whatever the study advises."""
    trial = next(t for t in STUDY.trials if t.measurement and t.configuration != STUDY.best)
    ((name, text),) = export.export(STUDY, "serving", trial=trial.number).items()
    assert name == f"trial-{trial.number}.yaml", "it is not the best"
    assert f"--settings trial-{trial.number}.yaml" in text
    assert f"# Trial {trial.number}, as requested." in text
    expected = ServingSettings().with_changes(trial.configuration)
    assert ServingSettings().with_changes(yaml.safe_load(text)) == expected
