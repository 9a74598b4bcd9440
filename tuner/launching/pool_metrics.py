"""What the serving core counts of replicas that models share: loads, refusals and their reasons.

In: where its admin port listens. Out: totals of its counters. Blocking, with a timeout. Reads the text form of
Prometheus's metrics as far as these counters need it.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Self

from tuner.errors import LaunchFailed

TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20
_LINE = re.compile(r"(\w+)\{(.*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """Totals since the server started."""

    refusals: Mapping[str, int]
    """Reason -> requests, of all models."""
    loads: int
    """That succeeded."""
    too_late: int
    """Actions that did not begin in their window."""

    def since(self, before: Self) -> PoolCounts:
        """What came after another reading."""
        refusals = collections.Counter(self.refusals)
        refusals.subtract(before.refusals)
        return PoolCounts(
            refusals={reason: count for reason, count in refusals.items() if count},
            loads=self.loads - before.loads,
            too_late=self.too_late - before.too_late,
        )


def read(host: str, admin_port: int) -> PoolCounts:
    """The counters now.

    Raises:
        LaunchFailed: `crash`, because the server is gone or does not answer.
    """
    try:
        with urllib.request.urlopen(
            f"http://{host}:{admin_port}/metrics", timeout=TIMEOUT_S
        ) as answer:
            text = answer.read(_MOST_BYTES).decode()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise LaunchFailed("crash", f"the engine tells no metrics: {error}") from error
    return parsed(text)


def parsed(text: str) -> PoolCounts:
    """Of the text form."""
    refusals: collections.Counter[str] = collections.Counter()
    loads = too_late = 0
    for name, labels, value in _LINE.findall(text):
        given = dict(_LABEL.findall(labels))
        if name == "luthier_refusals_total":
            refusals[given["reason"]] += int(float(value))
        elif name == "luthier_pool_actions_total" and given["outcome"] == "too_late":
            too_late += int(float(value))
        elif name == "luthier_pool_actions_total" and given["action"] == "load":
            loads += int(float(value)) if given["outcome"] == "ok" else 0
    return PoolCounts(refusals=dict(refusals), loads=loads, too_late=too_late)
