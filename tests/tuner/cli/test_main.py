"""The command line: errors in one line, codes, JSON, and a page that names every option."""

from __future__ import annotations

import json
import pathlib
import re
import signal

import pytest
import rich.table

from tests.fakes import studies
from tuner.cli import main
from tuner.cli.commands import CommandResult, options
from tuner.cli.commands import study as study_command
from tuner.errors import UsageError
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "commands.md"
NAMES = (None, *main.COMMANDS)


def test_a_runs_folder_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, which does not ask for space."""
    (tmp_path / "runs").write_text("not a folder")
    study = ["--model", "echo", "--concurrency", "2", "--study", "s"]
    assert main.main([*study, "--runs-dir", str(tmp_path / "runs")]) == 1
    said = "cannot be written: Not a directory; choose another --runs-dir"
    assert capsys.readouterr().err == f"tune: study folder {tmp_path}/runs/s {said}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "eco", "--concurrency", "4"], "did you mean 'echo'"),
        (["--model", "echo"], "--concurrency"),
        (["--model", "echo", "--concurrency", "0"], "--concurrency 0: expected"),
        (["--model", "echo", "--concurrency", "four"], "'four' is not a whole number"),
        (["--model", "echo", "--concurrency", "4", "--trails", "5"], "did you mean '--trials'"),
        (["--model", "echo", "--concurrancy", "4"], "did you mean '--concurrency'"),
        (["--model", "echo", "--concurrency", "4", "--max-time", "soon"], "expected for example"),
        (
            ["--model", "echo", "--concurrency", "4", "--trials", "3", "--initial", "4"],
            "--initial 4",
        ),
        (["--model", "echo", "--concurrency", "4", "--space", "no.yaml"], "no.yaml"),
        (["--model", "no.onnx", "--concurrency", "4"], "no file"),
        (["resum", "x"], "did you mean 'resume'"),
        (["resume", "x"], "study 'x' is not known (studies in runs: none)"),
        (["report", "x"], "study 'x' is not known"),
        (["export", "x"], "study 'x' is not known"),
        (["export", "x", "--trial", "one"], "'one' is not a whole number"),
        (["compare", "--model", "echo", "--concurrency", "4", "--samplers", "gp"], "at least two"),
        (["load", "ftp://host/", "--concurrency", "2"], "expected http://HOST"),
        (["load", "http://127.0.0.1:1/", "--concurrency", "2"], "--model NAME"),
        (
            ["space", "--model", "echo", "--concurrency", "4", "--out", "no/such/b.yaml"],
            "--out no/such/b.yaml cannot be written: no such folder: no/such",
        ),
        (["doctor", "--evaluations", "1"], "--evaluations 1: expected"),
        (["doctor", "--model", "nope"], "model 'nope' is not known"),
        (["doctor", "--noise", "--model", "nope"], "model 'nope' is not known"),
        (
            ["doctor", "--noise", "--evaluations", "1"],
            "--evaluations 1: expected a whole number from 2",
        ),
        (["doctor", "--noise", "--clean"], "--clean and --noise: choose one"),
        (["doctor", "--configurations", "6"], "--configurations: only allowed with --noise"),
        (["doctor", "--warmup", "1"], "--warmup: only allowed with --noise"),
    ],
)
def test_wrong_use_is_one_line_and_code_two(
    arguments: list[str],
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong stands in one line on standard error; nothing is written anywhere."""
    monkeypatch.chdir(tmp_path)
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_study_lists_those_there_are(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few by name; of many the nearest."""
    for name in ("echo-1", "echo-2"):
        RunFolder(tmp_path, name).create({}, {})
    assert main.main(["resume", "echo-3", "--runs-dir", str(tmp_path)]) == 2
    assert f"did you mean 'echo-2'? (studies in {tmp_path}: echo-1, echo-2)" in (
        capsys.readouterr().err.replace("'echo-1'?", "'echo-2'?")
    )
    for number in range(20):
        RunFolder(tmp_path, f"resnet-{number}").create({}, {})
    assert main.main(["report", "echo-3", "--runs-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "echo-1" in err
    assert "and 18 others" in err


def test_an_unfinished_study_points_to_resume(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It recommends nothing yet; one without any trial has none to export either."""
    settings = StudySettings(target=TargetSettings(model="echo", concurrency=4))
    folder = RunFolder(tmp_path, "s")
    folder.create(settings.as_nested(), {})
    where = ["--runs-dir", str(tmp_path)]
    assert main.main(["resume", "s", *where]) == 2
    assert "holds no trials" in capsys.readouterr().err
    StudyStore.create("s", database=folder.database, url=None, facts={})
    assert main.main(["export", "s", *where]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert (
        f"is not finished and has no recommendation yet: resume it with `tune resume s --runs-dir {tmp_path}`"
        in err
    )


def test_an_error_is_one_json_object_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is an object too, with the exit code in it."""
    assert main.main(["--model", "eco", "--concurrency", "4", "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == 2
    assert "echo" in data["error"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_tells_its_default(name: str | None) -> None:
    """The help of each option that may be left out says what happens then."""
    for action in main.parser_of(name)._actions:
        if action.option_strings and not action.required and action.dest not in {"help", "version"}:
            assert action.help is not None
            assert "default" in action.help, action.option_strings


@pytest.mark.parametrize("name", NAMES)
def test_help_is_printed_and_fits(name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """--help ends with code 0 and names the command."""
    assert main.main([*([name] if name else []), "--help"]) == 0
    assert f"tune {name}" if name else "tune" in capsys.readouterr().out


def helps(name: str | None) -> dict[str, str]:
    """Return the help of each option of a command."""
    return {
        action.option_strings[0]: " ".join((action.help or "").replace("%%", "%").split())
        for action in main.parser_of(name)._actions
        if action.option_strings and action.dest not in {"help", "version"}
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_every_option_with_its_help(name: str | None) -> None:
    """docs/commands.md describes each option, or refers to the same one of a study."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    title = f"tune {name}\n" if name else "A study\n"
    (section,) = [one for one in sections if one.startswith(title)]
    page = " ".join(section.split())
    shared = page.partition("Also, as in [a study](#a-study):")[2]
    of_study = helps(None)
    for flag, text in helps(name).items():
        if f"`{flag}`" in shared:
            assert of_study[flag] == text, (name, flag)
        else:
            assert f"| `{flag}" in page, name
            assert text.replace("|", "\\|") in page, (name, flag)


def test_percent_signs_survive_the_help() -> None:
    """argparse formats help texts; none of ours breaks it."""
    for name in NAMES:
        assert re.search(r"usage:", main.parser_of(name).format_help())


def test_an_unexpected_end_names_the_file_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What nobody foresaw is one line and code 1; the traceback is in the named file."""
    with EventLog() as log:
        with pytest.raises(ZeroDivisionError) as caught:
            raise ZeroDivisionError("odd\nthing")
        assert main.print_error(caught.value, log, is_json=True) == 1
    out, err = capsys.readouterr()
    assert err.startswith("tune: unexpected ZeroDivisionError: odd thing; details in ")
    assert err.count("\n") == 1
    assert json.loads(out)["exit_code"] == 1
    path = pathlib.Path(err.rsplit(" ", 1)[1].strip())
    assert "Traceback" in path.read_text(encoding="utf-8")
    path.unlink()


def test_a_signal_that_was_swallowed_is_noticed_at_the_next_check() -> None:
    """One signal raises once; checks raise from then on; a second at once is left out."""
    interrupts = main.Interrupts()
    interrupts.check()
    with interrupts.handle_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_settings_of_a_study_come_from_the_command_line() -> None:
    """Each group gets what was given, and defaults for the rest."""
    parsed = main.parser_of(None).parse_all(
        ["--model", "echo", "--concurrency", "4", "--max-time", "90s", "--objective", "p99"]
    )
    settings = options.settings_of(parsed)
    assert settings.search.max_time_s == 90
    assert settings.measurement.objective == "p99"
    assert settings.search.trials == 50
    assert settings.search.first_trials == 2


def test_constraints_may_be_given_more_than_once() -> None:
    """Each is kept as it is read; a wrong one is refused with the nearest metric."""
    given = ["--model", "echo", "--concurrency", "4", "--constraint", "p99_ms<50"]
    parsed = main.parser_of(None).parse_all([*given, "--constraint", "throughput_per_s >= 100"])
    settings = options.settings_of(parsed)
    assert settings.measurement.constraints == ("p99_ms <= 50", "throughput_per_s >= 100")
    with pytest.raises(UsageError, match=r"--constraint: .*'p98_ms' is not known, did you mean"):
        main.parser_of(None).parse_all([*given, "--constraint", "p98_ms <= 5"])


@pytest.mark.parametrize(("given", "expected"), [("4", 4), ("1,5,20", (1, 5, 20))])
def test_a_study_has_one_load_or_several(given: str, expected: int | tuple[int, ...]) -> None:
    parsed = main.parser_of(None).parse_all(["--model", "echo", "--concurrency", given])
    assert parsed.concurrency == expected


@pytest.mark.parametrize("given", ["5,1", "5,5", "5,x", ","])
def test_loads_that_do_not_ascend_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        main.parser_of(None).parse_all(["--model", "echo", "--concurrency", given])


def test_a_program_reads_values_in_the_objective_s_own_unit() -> None:
    """Requests per second of a throughput study, and the same advice as a person reads."""
    record = studies.study(objective="throughput", trials=12)
    told = study_command.as_json(record, {}, stopped="the budget is used up")
    best = next(t for t in record.trials if t.configuration == record.best and t.measurement)
    assert told["best_seen"] == best.measurement.throughput_per_s
    assert told["recommendation"].endswith(".")
    assert told["recommended"] in (dict(record.best), dict(record.default))


def test_a_table_in_a_file_has_whole_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no window to fold it for, unless `COLUMNS` names one."""
    table = rich.table.Table(box=None, show_header=False)
    table.add_row("a figure " * 9, "its interval " * 5)
    for columns in (None, "80"):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert (
            main._print_result(CommandResult(text=table, data={}), None, "tune", is_json=False) == 0
        )
        rows = len(capsys.readouterr().out.splitlines())
        assert rows == 1 if columns is None else rows > 1
