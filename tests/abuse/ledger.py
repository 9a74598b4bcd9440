"""What the campaign has found so far, one JSON line per stage, so that a run that was cut goes on where it was.

A line counts for a later run where seed, commit and size are the same.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What came of one stage."""

    stage: str
    title: str
    half: int
    seed: int
    commit: str
    is_quick: bool
    date: str
    seconds: float
    cases: int
    failures: int
    failed: dict[str, str]
    """Case -> what was wrong; the first 200."""
    broken: list[str]
    """Oracles that found something."""
    notes: list[str]
    worst_health_ms: float | None
    worst_echo_ms: float | None
    worst_null_ms: float | None
    p99_health_ms: float | None
    growth_mib: float | None
    peak_mib: float | None
    """Over what was used before."""

    @property
    def has_passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.failures and not self.broken


class Ledger:
    """One file of entries."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def entries(self) -> list[Entry]:
        """All of them, the oldest first; a line that was cut off is none."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return found

    def add(self, entry: Entry) -> None:
        """Keep one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as ledger:
            ledger.write(json.dumps(dataclasses.asdict(entry)) + "\n")

    def done(self, *, seed: int, commit: str, is_quick: bool) -> dict[str, Entry]:
        """The last entry of each stage of a run."""
        return {
            entry.stage: entry
            for entry in self.entries()
            if (entry.seed, entry.commit, entry.is_quick) == (seed, commit, is_quick)
        }

    def last_seed(self, *, commit: str, is_quick: bool) -> int | None:
        """Of the newest run of a commit."""
        found = [e for e in self.entries() if (e.commit, e.is_quick) == (commit, is_quick)]
        return found[-1].seed if found else None

    def runs(self) -> Sequence[tuple[int, str, bool]]:
        """Seed, commit and size of every run, the newest last."""
        keys = [(entry.seed, entry.commit, entry.is_quick) for entry in self.entries()]
        return sorted(set(keys), key=lambda key: len(keys) - 1 - keys[::-1].index(key))


def commit() -> str:
    """Of the checkout, with `+` where it was changed since; `unknown` where there is no git."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            cwd=_ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
