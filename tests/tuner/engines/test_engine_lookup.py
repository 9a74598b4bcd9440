"""Engines by name: what stands behind one, and what is said of a name that is not known."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tuner.cli import main
from tuner.engines import engine_lookup
from tuner.engines import file as engine_file
from tuner.errors import UsageError


def test_a_name_is_an_engine_file_of_the_tuner() -> None:
    """On the tuner's own interpreter; reports call the engine by its name."""
    found = engine_lookup.engine_of("mosec")
    assert found.file == engine_lookup.FOLDER / "mosec" / "engine.yaml"
    assert (found.name, found.label, found.python) == ("mosec", "mosec", sys.executable)


def test_an_interpreter_after_the_name_runs_it(tmp_path: pathlib.Path) -> None:
    """It is not resolved: the link is what makes an environment; a kept study needs it no more."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert engine_lookup.engine_of(f"triton:{link}").python == str(link)
    link.unlink()
    with pytest.raises(
        UsageError, match=f"--engine triton:{link}: no file {link}; expected after the colon"
    ):
        engine_lookup.engine_of(f"triton:{link}")
    text = engine_file.read_text(engine_lookup.FOLDER / "triton" / "engine.yaml")
    assert engine_lookup.engine_of(f"triton:{link}", kept=text).python == str(link)


def test_an_unknown_name_is_told_with_those_that_there_are() -> None:
    """And with the nearest of them."""
    with pytest.raises(UsageError) as caught:
        engine_lookup.engine_of("mosek")
    said = str(caught.value)
    assert said.startswith("--engine mosek: 'mosek' is not an engine, did you mean 'mosec'?")
    assert "expected luthier, mosec, triton, command:FILE" in said


def test_the_help_lists_every_name() -> None:
    """Of the tuner's engine files."""
    shown = main.parser_of(None).format_help()
    assert [name for name in engine_lookup.names() if name not in shown] == []
