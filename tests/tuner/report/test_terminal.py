import dataclasses
import pathlib

from tests.fakes import studies
from tuner.report import terminal

FILES = {
    "report": pathlib.Path("runs/resnet-20/report.html"),
    "settings": pathlib.Path("runs/resnet-20/best.yaml"),
}


def test_the_summary_has_answer_table_and_files():
    """Both configurations, the ratios, the verdict, the notes and the paths are there."""
    study = studies.study()
    lines = terminal.lines(study, FILES)
    text = "\n".join(lines)
    assert study.verdict.text in text
    assert "× 0.317 (0.303 to 0.330)" in text
    for knob in study.knobs:
        assert knob.name in text
    for path in FILES.values():
        assert str(path) in text
    assert any("replica.count" in line and line.endswith("changed") for line in lines)


def test_the_command_that_serves_is_named_with_the_model_as_it_was_given():
    """A model of one's own is known to the server by its path alone."""
    study = dataclasses.replace(studies.study(), settings={"target": {"model": "/m/mlp.onnx"}})
    use = "python -m serving --model /m/mlp.onnx --settings runs/resnet-20/best.yaml"
    assert any(line.endswith(use) for line in terminal.lines(study, FILES))
    assert not any("serving" in line for line in terminal.lines(study, {}))


def test_lines_fit_a_narrow_terminal():
    """At 60 columns no line is longer but the command, which is whole and alone."""
    longer = [line for line in terminal.lines(studies.study(), FILES, width=60) if len(line) > 60]
    assert len(longer) == 1
    assert longer[0].startswith("python -m serving --model ")


def test_awkward_studies_have_a_summary(edge_study):
    """The summary names the model and its headline, whatever is missing."""
    lines = terminal.lines(edge_study, {})
    assert lines[0].startswith(edge_study.model)
    assert len(lines) > 1


def test_markup_in_names_is_text():
    """Square brackets in a name are not read as styles."""
    lines = terminal.lines(studies.study(name="[red]x[/red]", trials=3), {})
    assert "[red]x[/red]" in lines[0]


def test_a_client_batch_and_an_objective_of_its_own_are_shown():
    """Items per second beside requests per second, and the spread as the first figure."""
    study = dataclasses.replace(studies.study(trials=12, objective="consistency"), client_batch=4)
    lines = terminal.lines(study, FILES)
    assert "at concurrency 20, 4 items in each request (" in lines[0]
    figures = [line.split(" (")[0] for line in lines if "(ms)" in line or "(requests/s)" in line]
    assert figures == ["consistency", "mean", "p99", "throughput"]
    assert any(line.startswith("items/s") for line in lines)
    plain = terminal.lines(studies.study(trials=12), FILES)
    assert not any(line.startswith(("items/s", "consistency")) for line in plain)
