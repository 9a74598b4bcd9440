"""What a stage of the campaign is, what it may ask for, and what it finds: values, and the tally of one run.

A stage is a module of `tests.abuse.stages` with one `STAGE`. It gets a `Context` with a running server, a
random generator of its own, and its size; it calls `Context.case` for everything that it tries. What holds
for all stages alike is judged afterwards, by `tests.abuse.oracles`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import random
import shutil
import time
from collections.abc import Callable, Mapping

from tests.abuse import cases
from tests.abuse.subject import Subject, SubjectSpec

KEPT_PER_STAGE = 40
"""Failing cases that one run of a stage keeps as bytes: more say nothing new."""
TOLD_CHARACTERS = 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a stage's oracles let pass, because the stage itself makes it so."""

    is_overload: bool = False
    """The observer may be answered 429 and 503."""
    stops_gateway: bool = False
    """The stage stops, delays or replaces the gateway: the observer's times are not judged."""
    peak_mib: float = 512
    """Most memory over what was used before, at the worst moment."""
    log_lines_per_case: int = 0
    """Lines that the server may log for a case, beside 1 MB in all."""
    tracebacks: bool = False
    """A model of the stage's own raises, which the log shows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One row of the campaign's table."""

    name: str
    title: str
    half: int
    run: Callable[[Context], None]
    warm: Callable[[Context], None] | None = None
    """What is done before it is seen what the server holds; None: nothing."""
    is_quick: bool = False
    """Whether `make abuse-quick` has it, in a smaller size."""
    limit_s: float = 600
    """A run that takes longer is ended and has failed."""
    quick_limit_s: float = 120
    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What it starts -> the Debian package that has it."""
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What it imports -> the package on PyPI that has it."""
    spec: SubjectSpec | None = dataclasses.field(default_factory=SubjectSpec)
    """The server that it is run against; None: it needs none."""
    allowance: Allowance = dataclasses.field(default_factory=Allowance)

    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        lacks = [
            f"{name} (apt-get install {package})"
            for name, package in self.programs.items()
            if shutil.which(name) is None
        ]
        return lacks + [
            f"{name} (pip install {package})"
            for name, package in self.modules.items()
            if importlib.util.find_spec(name) is None
        ]


@dataclasses.dataclass(slots=True)
class Tally:
    """What was tried, and what of it failed."""

    cases: int = 0
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name of the case -> what was wrong."""
    failures: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    kept: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name of the case up to its first comma -> its file."""


class Context:
    """What a stage works with while it runs."""

    def __init__(
        self,
        stage: str,
        *,
        seed: int,
        is_quick: bool,
        folder: pathlib.Path,
        subject: Subject | None,
        limit_s: float,
        journal: pathlib.Path | None = None,
        keeps: bool = True,
    ) -> None:
        self.stage = stage
        self.seed = seed
        self.rng = random.Random(f"{seed}/{stage}")
        self.is_quick = is_quick
        self.folder = folder
        """Of its own, removed afterwards."""
        self._subject = subject
        self._until_s = time.monotonic() + limit_s
        self._journal = journal
        self._keeps = keeps
        self.tally = Tally()

    @property
    def subject(self) -> Subject:
        """The server that is abused."""
        assert self._subject is not None, f"stage {self.stage} has no server"
        return self._subject

    def size(self, whole: int, quick: int) -> int:
        """How many of something this run tries."""
        return quick if self.is_quick else whole

    @property
    def left_s(self) -> float:
        """Time until the stage is ended."""
        return self._until_s - time.monotonic()

    def case(self, name: str, wrong: str | None, data: bytes = b"", **replay: object) -> None:
        """Note one case.

        Args:
            name: what was tried; the same name for the same bytes.
            wrong: what was not as promised; None: all was.
            data: what was sent, from which the case can be tried again.
            replay: whatever else `tests.abuse.stages` needs for that.
        """
        self.tally.cases += 1
        if self._journal is not None and (wrong or self.tally.cases <= 20_000):
            line = {"stage": self.stage, "case": name, "wrong": wrong and wrong[:TOLD_CHARACTERS]}
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line) + "\n")
        if wrong is None:
            return
        self.tally.failures += 1
        if len(self.tally.failed) < 200:
            self.tally.failed.setdefault(name, wrong[:TOLD_CHARACTERS])
        row = name.partition(",")[0]  # what is wrong in one form mostly is in the others
        has_room = row not in self.tally.kept and len(self.tally.kept) < KEPT_PER_STAGE
        if data and self._keeps and has_room:
            self.tally.kept[row] = cases.keep(self.stage, name, data, replay)

    def count(self, cases_more: int) -> None:
        """Note many cases that all passed."""
        self.tally.cases += cases_more

    def note(self, text: str) -> None:
        """Say something that belongs on the page."""
        self.tally.notes.append(text)
