"""Prometheus metrics of shared replicas: loads, and rejections by reason."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Self

_LINE = re.compile(r"(\w+)\{(.*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """Totals since the server started."""

    refusals: Mapping[str, int]
    """Number of rejected requests by reason, over all models."""
    loads: int
    """Number of successful model loads."""
    too_late: int
    """Number of actions that missed their window."""

    def since(self, before: Self) -> PoolCounts:
        """Return the increase since the earlier reading `before`."""
        refusals = collections.Counter(self.refusals)
        refusals.subtract(before.refusals)
        return PoolCounts(
            refusals={reason: count for reason, count in refusals.items() if count},
            loads=self.loads - before.loads,
            too_late=self.too_late - before.too_late,
        )


def parse(text: str) -> PoolCounts:
    """Parse a server's metrics."""
    refusals: collections.Counter[str] = collections.Counter()
    loads = too_late = 0
    for name, labels, value in _LINE.findall(text):
        given = dict(_LABEL.findall(labels))
        if name == "luthier_rejected_requests_total":
            refusals[given["reason"]] += int(float(value))
        elif name == "luthier_pool_actions_total" and given["outcome"] == "too_late":
            too_late += int(float(value))
        elif name == "luthier_pool_actions_total" and given["action"] == "load":
            loads += int(float(value)) if given["outcome"] == "ok" else 0
    return PoolCounts(refusals=dict(refusals), loads=loads, too_late=too_late)
