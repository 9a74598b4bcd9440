"""Programs that go with an export, as files of this package.

In: a file's name. Out: its text, the same for every study: what differs stands in the
configuration beside it, so that no name of a study becomes code.
"""

from __future__ import annotations

import importlib.resources


def text(name: str) -> str:
    """The text of a file in `files/`."""
    folder = importlib.resources.files("tuner.export") / "files"
    return (folder / name).read_text(encoding="utf-8")
