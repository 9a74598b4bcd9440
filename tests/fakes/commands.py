"""`tune`, run to its end in this process: what starts a study is paid once."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib

from tuner.cli import main


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def tune(folder: pathlib.Path, *arguments: str) -> Done:
    """Run a command in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.main(arguments)
    return Done(code, out.getvalue(), err.getvalue())
