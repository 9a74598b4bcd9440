"""The best configuration in the words of other systems: one file per target, all pure.

In: `StudyRecord`. Out: file names and their texts; the caller decides where they are written.
Adding a target is one file and one line in `TARGETS`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.export import serving
from tuner.values import StudyRecord

Exporter = Callable[[StudyRecord], dict[str, str]]
"""File name -> text; raises WrongUse when the study has nothing to export."""

TARGETS: Mapping[str, Exporter] = types.MappingProxyType({"serving": serving.files})
"""`tune export STUDY --to NAME`."""


def export(record: StudyRecord, target: str) -> dict[str, str]:
    """The files of one target, file name -> text.

    Raises:
        WrongUse: no such target, or no trial of the study was ok.
    """
    if target not in TARGETS:
        raise WrongUse(
            f"export target {target!r} is not known{nearest(target, TARGETS)} "
            f"(targets: {', '.join(TARGETS)})"
        )
    return TARGETS[target](record)
