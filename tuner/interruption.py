"""A signal becomes the error that ends a command, with what was kept and the command that goes on.

In: a study's folder, or None where a command keeps nothing. Out: `Interrupted`. Signals arrive as
KeyboardInterrupt (`tuner.cli`). Looks at the folder, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tuner.errors import Interrupted
from tuner.settings import runs_dir_option
from tuner.store.run_folder import RunFolder

NOTHING = "nothing was kept"
EVERYTHING = "everything measured so far is kept"
NOT_BEGUN = "nothing was measured yet"


@contextlib.contextmanager
def resumable(folder: RunFolder | None, kept: str = EVERYTHING) -> Iterator[None]:
    """Turn a signal into `Interrupted`.

    Args:
        folder: of the study that can be gone on with from the moment it is there; None: no study.
        kept: what is true of that study when the signal comes.

    Raises:
        Interrupted: instead of KeyboardInterrupt inside the block.
    """
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not folder.is_study():
            raise Interrupted(NOTHING) from None
        raise Interrupted(f"{kept}; {go_on(folder)}") from None


def kept(*, trials: int, starts: int, of: int) -> str:
    """What an interrupted study has.

    Args:
        trials: that ended.
        starts: fresh starts of the verification that need not be launched again.
        of: fresh starts that the verification has; 0 while the study searches.
    """
    if of:
        return f"the search and {starts} of {of} fresh starts of the verification are kept"
    if not trials:
        return "no trial had ended, so there is no result yet"
    return f"{trials} trial{'s are' if trials > 1 else ' is'} kept"


def go_on(folder: RunFolder) -> str:
    """How to go on with a study, as the end of a sentence."""
    return f"go on with: {resume_command(folder)}"


def resume_command(folder: RunFolder) -> str:
    """The command that goes on with a study."""
    return f"tune resume {folder.name}{runs_dir_option(folder.runs_dir)}"
