"""Errors of the tuner; `exit_code` is what the command ends with.

    TunerError (1)                   the study could not be done; one line with the reason
    ├── WrongUse (2)                 an option, a name or a file is wrong
    │   ├── InvalidDocument          a file of the user: file, key, expected, nearest valid name
    │   │   ├── InvalidSpace         a search space
    │   │   ├── InvalidEngine        the description of another engine
    │   │   ├── InvalidSurface       a recorded surface
    │   │   ├── InvalidPrices        a price file
    │   │   └── InvalidScenario      a scenario of a pool
    │   ├── UnknownSize              an input's size was not told, and the option that tells it
    │   ├── UnknownStudy             no such study, with the ones there are
    │   └── StudyExists              the name is taken, and what to do about it
    ├── StudyBusy                    another process runs the study
    ├── Interrupted (130)            a signal ended the command; what was measured is kept
    ├── LaunchFailed                 no start; `cause`: oom, start, crash, timeout, limits
    ├── LoadFailed                   the load generator could not drive the server
    │   └── ClientLost               the load generator's own process ended or stood still
    └── StorageFailed                the run folder cannot be written (a full disk, no rights)

A failed trial is a value (`tuner.values.Outcome`), not an exception: these end a command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from serving.errors import nearest
from tuner.values import Cause

MOST_LISTED = 8
"""More names than these are not read: then the nearest are told."""
NEAREST_LISTED = 4


def listed(given: str, valid: Iterable[str]) -> str:
    """The valid names, or the nearest of many and how many others there are."""
    names = list(valid)
    if len(names) <= MOST_LISTED:
        return ", ".join(names)
    close = difflib.get_close_matches(given, names, n=NEAREST_LISTED, cutoff=0.0)
    return f"{', '.join(close)} and {len(names) - len(close)} others"


class TunerError(Exception):
    """Root of the tree."""

    exit_code: ClassVar[int] = 1


class WrongUse(TunerError):
    """The command was called with something wrong."""

    exit_code = 2


class UnknownSize(WrongUse):
    """A model leaves the size of an input free, and nobody has told it."""

    def __init__(self, text: str, option: str) -> None:
        super().__init__(text, option)
        self.text = text
        self.option = option
        """To be added to the command; its sizes are examples."""

    def __str__(self) -> str:
        return self.text


class InvalidDocument(WrongUse):
    """A file that a user wrote is wrong."""

    noun: ClassVar[str] = "file"
    """What kind of file it is."""

    def __init__(self, file: str, key: str, text: str) -> None:
        super().__init__(file, key, text)
        self.file = file
        self.key = key
        self.text = text

    def __str__(self) -> str:
        where = f"{self.noun} {self.file}" + (f", {self.key}" if self.key else "")
        return f"{where}: {self.text}"


class InvalidSpace(InvalidDocument):
    """A search space is wrong."""

    noun = "search space"


class InvalidEngine(InvalidDocument):
    """The description of another engine is wrong."""

    noun = "engine file"


class InvalidSurface(InvalidDocument):
    """A recorded surface is wrong."""

    noun = "surface"


class InvalidScenario(InvalidDocument):
    """A scenario of a pool is wrong."""

    noun = "scenario"


class InvalidPrices(InvalidDocument):
    """A price file is wrong."""

    noun = "price file"


class UnknownStudy(WrongUse):
    """No study of that name."""

    def __init__(self, name: str, known: tuple[str, ...], where: str) -> None:
        super().__init__(name, known, where)
        self.name = name
        self.known = known
        self.where = where

    def __str__(self) -> str:
        hint = nearest(self.name, self.known)
        studies = listed(self.name, self.known) if self.known else "none"
        return f"study {self.name!r} is not known{hint} (studies in {self.where}: {studies})"


class StudyExists(WrongUse):
    """Something of that name is already there; `instead` says what can be done about it."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what = what
        self.instead = instead

    def __str__(self) -> str:
        return f"{self.what} exists: {self.instead}"


class StudyBusy(TunerError):
    """Another process holds the study."""

    def __init__(self, name: str, holder: str | None) -> None:
        super().__init__(name, holder)
        self.name = name
        self.holder = holder

    def __str__(self) -> str:
        who = f"process {self.holder}" if self.holder else "another process"
        return f"study {self.name!r} is being run by {who}: wait for it, or end it first"


class Interrupted(TunerError):
    """A signal ended the command; `text` says what was kept, and how to go on."""

    exit_code = 130

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"interrupted; {self.text}"


class LaunchFailed(TunerError):
    """The engine under test did not become ready."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(cause, text)
        self.cause = cause
        self.text = text

    def __str__(self) -> str:
        return self.text


class LoadFailed(TunerError):
    """The load generator could not do its work."""


class ClientLost(LoadFailed):
    """The load generator's own process was lost: that says nothing of the server."""


class StorageFailed(TunerError):
    """Results cannot be written."""
