"""Errors of the tuner; `exit_code` becomes the exit code of the command.

    TunerError (1)                   the command failed; one line with the reason
    ├── UsageError (2)               invalid option, name or file
    │   ├── InvalidDocument          a user's file: file, key, expected, nearest valid name
    │   │   ├── InvalidSpace         a search space
    │   │   ├── InvalidEngine        an engine file
    │   │   ├── InvalidTable         a benchmark table
    │   │   ├── InvalidPrices        a price file
    │   │   └── InvalidScenario      a scenario file
    │   ├── UnknownSize              an undeclared input size; names the option
    │   ├── UnknownStudy             no such study; lists the existing ones
    │   └── StudyExists              the name is taken; says what to do
    ├── StudyBusy                    another process runs the study
    ├── Interrupted (130)            ended by a signal; measurements are saved
    ├── LaunchFailed                 server not ready; `cause`: oom, start, crash, timeout, limits
    ├── NodeLost                     a machine that measures for the study does not answer
    ├── LoadGeneratorFailed          the load generator failed
    │   └── LoadGeneratorLost        its own process ended or stalled
    └── StorageFailed                the run folder cannot be written

A failed trial is a value (`tuner.values.trial.Outcome`). Errors take positional arguments, by
which they are pickled.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import ClassVar

from serving.error_text import nearest
from tuner.values.trial import Cause

MAX_LISTED = 8
"""Maximum number of names to list; if there are more, only the nearest are listed."""
NEAREST_LISTED = 4


def list_names(given: str, valid: Iterable[str]) -> str:
    """Return the valid names; if there are many, only the nearest and the number of others."""
    names = list(valid)
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    close = difflib.get_close_matches(given, names, n=NEAREST_LISTED, cutoff=0.0)
    return f"{', '.join(close)} and {len(names) - len(close)} others"


class TunerError(Exception):
    """Base class of the tuner's errors."""

    exit_code: ClassVar[int] = 1


class UsageError(TunerError):
    """The command was used incorrectly."""

    exit_code = 2


@dataclasses.dataclass(eq=False)
class UnknownSize(UsageError):
    """An input has a variable size that was not declared."""

    text: str
    option: str
    """Option to add to the command, with example sizes."""

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(eq=False)
class InvalidDocument(UsageError):
    """A user's file is invalid."""

    noun: ClassVar[str] = "file"

    file: str
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.noun} {self.file}" + (f", {self.key}" if self.key else "")
        return f"{where}: {self.text}"


class InvalidSpace(InvalidDocument):
    """A search-space file is invalid."""

    noun = "search space"


class InvalidEngine(InvalidDocument):
    """An engine file is invalid."""

    noun = "engine file"


class InvalidTable(InvalidDocument):
    """A benchmark table is invalid."""

    noun = "benchmark table"


class InvalidScenario(InvalidDocument):
    """A scenario file is invalid."""

    noun = "scenario"


class InvalidPrices(InvalidDocument):
    """A price file is invalid."""

    noun = "price file"


@dataclasses.dataclass(eq=False)
class UnknownStudy(UsageError):
    """No study has that name."""

    name: str
    known: tuple[str, ...]
    where: str

    def __str__(self) -> str:
        hint = nearest(self.name, self.known)
        studies = list_names(self.name, self.known) if self.known else "none"
        return f"study {self.name!r} is not known{hint} (studies in {self.where}: {studies})"


@dataclasses.dataclass(eq=False)
class StudyExists(UsageError):
    """The study's name is taken; `instead` says what to do."""

    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what} exists: {self.instead}"


@dataclasses.dataclass(eq=False)
class StudyBusy(TunerError):
    """Another process holds the study."""

    name: str
    holder: str | None

    def __str__(self) -> str:
        who = f"process {self.holder}" if self.holder else "another process"
        return f"study {self.name!r} is in use by {who}: wait until it ends, or stop it"


@dataclasses.dataclass(eq=False)
class Interrupted(TunerError):
    """A signal ended the command; `text` says what was saved and how to resume."""

    exit_code = 130

    text: str

    def __str__(self) -> str:
        return f"interrupted; {self.text}"


@dataclasses.dataclass(eq=False)
class LaunchFailed(TunerError):
    """The engine under test did not become ready."""

    cause: Cause
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(eq=False)
class NodeLost(TunerError):
    """A machine that measures for a study does not answer any more."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"the machine {self.node} is lost: {self.text}"


class LoadGeneratorFailed(TunerError):
    """The load generator failed."""


class LoadGeneratorLost(LoadGeneratorFailed):
    """The load generator's process was lost, which says nothing about the server."""


class StorageFailed(TunerError):
    """Results cannot be written."""
