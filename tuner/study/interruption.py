"""Conversion of a signal to `Interrupted`, which says what was saved and how to resume.

Signals arrive as KeyboardInterrupt (`tuner.cli.main`).
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence

from tuner.errors import Interrupted, UsageError
from tuner.settings.recommended_commands import runs_dir_option, storage_option
from tuner.store.run_folder import RunFolder

NOTHING = "nothing was saved"
EVERYTHING = "everything measured so far is saved"
NOT_BEGUN = "nothing was measured yet"


@contextlib.contextmanager
def resumable(folder: RunFolder | None, kept: str = EVERYTHING) -> Iterator[None]:
    """Turn a signal into `Interrupted`, whose message says what is `kept` and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not folder.is_study():
            raise Interrupted(NOTHING) from None
        raise Interrupted(f"{kept}; {go_on(folder)}") from None


def describe_saved(
    *, trials: int, cut_off: Sequence[int] = (), evaluations: int | None = None
) -> str:
    """Describe what is saved; `evaluations` counts round evaluations, or is None during the search."""
    if evaluations is not None:
        return f"the search and {evaluations} evaluations of the verification are saved"
    if not trials:
        return "no trial has ended, so there is no result yet"
    dropped = "".join(f", and trial {number}, which was running, is not" for number in cut_off)
    return f"{trials} trial{'s are' if trials > 1 else ' is'} saved{dropped}"


def go_on(folder: RunFolder) -> str:
    """Return how to resume, for the end of a sentence."""
    return f"resume with: {resume_command(folder)}"


def resume_command(folder: RunFolder, *, from_anywhere: bool = False) -> str:
    """Return the command that resumes a study, optionally from any working folder."""
    if from_anywhere:
        study = shlex.quote(str(folder.path.absolute()))
    else:
        study = f"{shlex.quote(folder.name)}{runs_dir_option(folder.runs_dir)}"
    return f"tune resume {study}{storage_option(_saved_storage(folder))}"


def _saved_storage(folder: RunFolder) -> object:
    try:
        store = folder.settings().get("store")
    except UsageError:  # unreadable settings
        return None
    return store.get("storage") if isinstance(store, dict) else None
