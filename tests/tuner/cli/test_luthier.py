"""`luthier` is `tune` and the server under one name, for where Ray has installed others of theirs."""

from __future__ import annotations

import pathlib

import pytest

from serving import __main__ as server
from tuner import __main__ as tune
from tuner.cli import luthier, main


def ended(
    command, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Code and output of a command."""
    try:
        code = command(arguments)
    except SystemExit as error:  # argparse has printed
        code = int(error.code or 0)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_is_one_of_tune(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without `tune` before it; the help names the command as it was called."""
    code, said, _ = ended(tune.main, [name, "--help"], capsys)
    assert (code, f"usage: tune {name} " in said) == (0, True)
    for before in ([], ["tune"]):
        program = " ".join(["luthier", *before, name])
        code, told, _ = ended(luthier.main, [*before, name, "--help"], capsys)
        assert code == 0
        assert told.startswith(f"usage: {program} ")
        options = "\noptions:" if "\noptions:" in said else "\n\n"
        assert told[told.index(options) :] == said[said.index(options) :]


def test_a_study(tmp_path: pathlib.Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its options are `tune`'s, and errors name what was called."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", "eco", "--concurrency", "4"]
    code, out, err = ended(tune.main, arguments, capsys)
    assert (code, out) == (2, "")
    renamed = err.replace("tune: ", "luthier tune: ", 1)
    assert ended(luthier.main, ["tune", *arguments], capsys) == (2, "", renamed)
    assert ended(luthier.main, ["tune", "--help"], capsys)[1].startswith(
        "usage: luthier tune --model NAME|FILE --concurrency N [options]\n"
    )


def test_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Its options are the server's, and errors name what was called."""
    arguments = ["--model", "eco"]
    code, out, err = ended(server.main, arguments, capsys)
    assert (code, out, err.startswith("python -m serving: ")) == (2, "", True)
    renamed = err.replace("python -m serving: ", "luthier serve: ", 1)
    assert ended(luthier.main, ["serve", *arguments], capsys) == (2, "", renamed)
    code, _, err = ended(luthier.main, ["serve", "--modle", "echo"], capsys)
    assert code == 2
    assert err.startswith("luthier serve: unknown argument '--modle', did you mean '--model'?")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Those of `tune`, a study and the server."""
    code, said, err = ended(luthier.main, arguments, capsys)
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert listed == ["tune", "serve", *main.COMMANDS]


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest one."""
    code, _, err = ended(luthier.main, ["resum", "x"], capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("luthier: 'resum' is not a command, did you mean 'resume'?")
