"""Commands and options that messages recommend."""

from __future__ import annotations

import pathlib
import shlex


def runs_dir_option(runs_dir: object) -> str:
    """Return the `--runs-dir` option, or an empty string for the default."""
    return "" if str(runs_dir) == "runs" else f" --runs-dir {shlex.quote(str(runs_dir))}"


def storage_option(kept_url: object) -> str:
    """Return the `--storage` option if the saved URL hides a password (`***`), otherwise ""."""
    has_password = isinstance(kept_url, str) and ":***@" in kept_url
    return f" --storage {shlex.quote(str(kept_url))}" if has_password else ""


def serve_command(model: object | None, file: pathlib.PurePath, *, is_trusted: bool = False) -> str:
    """Return the command that serves a model (None for an empty server) with a settings file."""
    what = "--allow-empty" if model is None else f"--model {shlex.quote(str(model))}"
    what += " --trust" if is_trusted else ""
    return f"python -m serving {what} --settings {shlex.quote(str(file))}"
