"""Replays that `measure.py` has kept of one case, and quantiles over seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.metrics.benchmark import rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedCase:
    """Kept replays of one case."""

    name: str
    facts: Mapping[str, Any]
    conditions: Mapping[str, Mapping[str, Any]]
    """By label."""

    @property
    def is_judged(self) -> bool:
        """Whether no setting was chosen on the recording."""
        return bool(self.facts["half"] == "judged")

    @property
    def label(self) -> str:
        """Name, with a mark if it judges."""
        return f"{self.name} (judges)" if self.is_judged else self.name

    @property
    def studies(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """How whole studies of our sampler ended, by the seconds of their search and by seed."""
        found: Mapping[str, Any] = self.conditions.get("structured", {}).get("studies", {})
        return found

    def figures(self, label: str, *path: str) -> list[float] | None:
        """Return the figures of each seed, infinite for null; None where they were not measured."""
        found: Any = self.conditions.get(label)
        for key in path:
            found = None if found is None else found.get(key)
        return None if found is None else [math.inf if one is None else one for one in found]

    def regret(self, label: str, at_s: int) -> float | None:
        """Return the mean regret at a time."""
        found = self.figures(label, "regret_at_s", str(at_s))
        return None if found is None else statistics.fmean(found)

    def study_mean(self, at_s: int, key: str) -> float | None:
        """Return the mean of a figure of the studies that end then."""
        found = self.studies.get(str(at_s))
        return None if not found else statistics.fmean(one[key] for one in found)

    def trials(self, label: str, share: str, end_s: float) -> tuple[float, float] | None:
        """Return median and 90th percentile of the trials to a share for good, by this time."""
        found = self.figures(label, "within", share, f"{end_s:g}")
        return None if found is None else (quantile(found, 0.5), quantile(found, 0.9))


def read(folder: pathlib.Path) -> tuple[list[ReplayedCase], dict[str, Any]]:
    """Read all cases, and what is of none of them by the name of its file."""
    cases = [
        ReplayedCase(
            name=path.parent.name,
            facts=_json(path),
            conditions={one.stem: _json(one) for one in path.parent.glob("*.json") if one != path},
        )
        for path in sorted(folder.glob("*/case.json"))
    ]
    return cases, {path.stem: _json(path) for path in folder.glob("*.json")}


def _json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of the seeds does not exceed; infinite where too few get there."""
    found = rank(list(values), share)
    return math.inf if found is None else found
