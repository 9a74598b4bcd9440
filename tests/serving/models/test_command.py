"""Kind command: no Python host loads it."""

import pathlib

import pytest

from serving import models
from serving.errors import ModelLoadFailed
from serving.models import command


def test_a_host_says_that_it_cannot_load_a_program():
    with pytest.raises(ModelLoadFailed, match="a separate program"):
        models.load("command", pathlib.Path("/x"), threads=1)


def test_what_cannot_be_started_is_an_os_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        command.become([str(tmp_path / "gone")], str(tmp_path), "socket")
