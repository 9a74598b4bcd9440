"""The requests of one model that wait, by deadline: which batch can still be made of them, and who promised it.

In: entries with deadlines. Out: the largest batch that meets the deadline of each of its members, were it to
start at a time. Pure; no scan: deadlines are kept in order, and what is needed is found by halving.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from serving.scheduling.clockwork.backlog import Backlog
from serving.scheduling.clockwork.shares import Flow


class Promises:
    """What a worker has promised of one model that it holds, or will: bundles, by their cells."""

    __slots__ = ("backlog", "bundles", "cells_s", "leaves", "owes", "worker")

    def __init__(self, worker: int, backlog: Backlog) -> None:
        self.worker = worker
        self.backlog = backlog
        """Of the worker: where the work stands."""
        self.cells_s: list[float] = []
        self.bundles: list[Bundle] = []
        self.owes = 0
        """Items that wait."""
        self.leaves = False
        """Whether they are to be done before the model leaves."""

    def add(self, bundle: Bundle) -> None:
        """A new bundle."""
        place = bisect.bisect_right(self.cells_s, bundle.cell_s)
        self.cells_s.insert(place, bundle.cell_s)
        self.bundles.insert(place, bundle)

    def remove(self, bundle: Bundle) -> None:
        """One that is done, or will not be."""
        place = bisect.bisect_left(self.cells_s, bundle.cell_s)
        while self.bundles[place] is not bundle:
            place += 1
        del self.cells_s[place], self.bundles[place]


class Bundle:
    """Items of one model that a worker has promised to run together, and what that takes.

    One batch, or more where a request has more items than a batch.
    """

    __slots__ = ("by", "cell_s", "cost_s", "count", "entries", "until_s")

    def __init__(self, by: Promises, cell_s: float, until_s: float) -> None:
        self.by = by
        self.cell_s = cell_s
        """Where in the worker's backlog."""
        self.until_s = until_s
        """By when: the first deadline of those that have been in it, or when the model leaves."""
        self.count = 0
        """Items that wait."""
        self.cost_s = 0.0
        """Work that is promised for them."""
        self.entries: list[Entry] = []
        """Whose they are."""


class Entry:
    """One request; each of its items waits, is with a worker, or has its result."""

    __slots__ = (
        "alone",
        "bundle",
        "cost_s",
        "deadline_s",
        "due_s",
        "flow",
        "id",
        "items",
        "losses",
        "next_item",
        "open_items",
        "returned",
        "waits",
        "was_unrun",
    )

    def __init__(
        self,
        id_: int,
        items: int,
        deadline_s: float,
        due_s: float,
        flow: Flow | None = None,
        cost_s: float = 0.0,
    ) -> None:
        self.id = id_
        self.items = items
        self.deadline_s = deadline_s
        """When its batch must have ended: the caller's, less the way back and a buffer."""
        self.due_s = due_s
        """The caller's."""
        self.waits = 0
        """Items in the queue."""
        self.next_item = 0
        """The first item that no worker was given yet."""
        self.returned: list[int] = []
        """Items that a worker was given and did not run, the next one last."""
        self.open_items = items
        """Items without a result."""
        self.losses = 0
        """Workers that were lost with it."""
        self.alone = False
        """It is in no batch with others, or with parts of its own that do not adjoin: too large for that, or not run
        twice."""
        self.was_unrun = False
        """Whether a worker was given it and did not run it."""
        self.bundle: Bundle | None = None
        """With which its items that wait are promised."""
        self.flow = flow or Flow("")
        """Whose it is."""
        self.cost_s = cost_s
        """What an item of it counts in the share of that."""

    def give(self) -> int:
        """Another of its items is given to a worker; returns which."""
        self.waits -= 1
        if self.returned:
            return self.returned.pop()
        self.next_item += 1
        return self.next_item - 1

    def adjoining(self) -> int:
        """How many of its items that wait are one part, were they given next."""
        count = 1
        while count < len(self.returned) and self.returned[-count - 1] == self.returned[-1] + count:
            count += 1
        if count < len(self.returned):
            return count
        is_one = not self.returned or self.returned[0] + 1 == self.next_item
        return self.waits if is_one else count


class Chosen(NamedTuple):
    """A batch that could be made."""

    latest_s: float
    """When it must have started."""
    place: int
    """Of its size, in the sizes."""
    first: int
    """Place of its first item among those that wait."""


class Waiting:
    """Items of one model, the earliest deadline first."""

    __slots__ = ("alone", "deadlines_s", "entries")

    def __init__(self) -> None:
        self.deadlines_s: list[float] = []
        self.entries: list[Entry] = []
        self.alone: list[Entry] = []
        """Those that share no batch, and some that wait no more."""

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, entry: Entry, count: int) -> bool:
        """So many items of an entry wait from now on; returns whether it is the first now."""
        deadlines_s, deadline_s = self.deadlines_s, entry.deadline_s
        entry.waits += count
        place = len(deadlines_s)
        if place and deadline_s < deadlines_s[-1]:
            place = bisect.bisect_right(deadlines_s, deadline_s)
        elif count == 1:
            deadlines_s.append(deadline_s)
            self.entries.append(entry)
            return not place
        deadlines_s[place:place] = [deadline_s] * count
        self.entries[place:place] = [entry] * count
        return not place

    def remove(self, entry: Entry) -> None:
        """All items of an entry that wait."""
        place = bisect.bisect_left(self.deadlines_s, entry.deadline_s)
        entries = self.entries
        while place < len(entries) and self.deadlines_s[place] == entry.deadline_s:
            if entries[place] is entry:
                del entries[place], self.deadlines_s[place]
            else:
                place += 1
        entry.waits = 0

    def hopeless(self, before_s: float) -> list[Entry]:
        """Entries whose deadline is earlier; all of their items leave, and `waits` still tells how many did."""
        count = bisect.bisect_left(self.deadlines_s, before_s)
        if not count:
            return []
        found = list(dict.fromkeys(self.entries[:count]))
        del self.entries[:count], self.deadlines_s[:count]
        return found

    def choose(
        self, start_s: float, sizes: Sequence[int], worth_s: Sequence[float]
    ) -> Chosen | None:
        """The largest batch that could start then; None where not even one item can.

        The first requests are passed over where a larger batch can be made without them: at that time there
        is more to do than can be done, and a small batch for the first would lose more behind it. Not where
        all that waits would be done in time without that.
        """
        if self.alone:
            self.alone = [entry for entry in self.alone if entry.waits]
            if self.alone:
                return self._choose_apart(start_s, sizes, worth_s)
        deadlines_s = self.deadlines_s
        count = len(deadlines_s)
        best: Chosen | None = None
        for place in range(len(sizes) - 1, -1, -1):
            size = sizes[place]
            if size > count:
                continue
            took_s = worth_s[place]
            first = bisect.bisect_left(deadlines_s, start_s + took_s)
            if count - first < size:
                continue
            if first == 0:
                if best is None or self._all_in_time(start_s + took_s, size, sizes, worth_s):
                    return Chosen(deadlines_s[0] - took_s, place, 0)
                return best
            if best is None:
                best = Chosen(deadlines_s[first] - took_s, place, first)
        return best

    def _choose_apart(
        self, start_s: float, sizes: Sequence[int], worth_s: Sequence[float]
    ) -> Chosen | None:
        """The same where some share no batch: the first that is in time goes with as many as may be with it."""
        deadlines_s, entries = self.deadlines_s, self.entries
        first = bisect.bisect_left(deadlines_s, start_s + worth_s[0])
        if first == len(entries):
            return None
        if entries[first].alone:
            count = entries[first].adjoining()
        else:
            count = 1
            while (
                count < sizes[-1]
                and first + count < len(entries)
                and not entries[first + count].alone
            ):
                count += 1
        place = bisect.bisect_right(sizes, count) - 1
        while deadlines_s[first] < start_s + worth_s[place]:
            place -= 1
        return Chosen(deadlines_s[first] - worth_s[place], place, first)

    def _all_in_time(
        self, start_s: float, gone: int, sizes: Sequence[int], worth_s: Sequence[float]
    ) -> bool:
        """Whether what is left after the first `gone` items can be one batch that starts then."""
        left = len(self.deadlines_s) - gone
        if not left:
            return True
        place = bisect.bisect_left(sizes, min(left, sizes[-1]))
        return self.deadlines_s[gone] >= start_s + worth_s[min(place, len(sizes) - 1)]

    def pick(self, items: Sequence[Entry]) -> None:
        """An item of each of these entries leaves the queue."""
        deadlines_s, entries = self.deadlines_s, self.entries
        for entry in items:
            place = bisect.bisect_left(deadlines_s, entry.deadline_s)
            while entries[place] is not entry:
                place += 1
            del entries[place], deadlines_s[place]

    def take(self, first: int, count: int) -> list[Entry]:
        """The entries of so many items from one on, one for each item; these leave the queue."""
        stop = first + count
        found = self.entries[first:stop]
        del self.entries[first:stop], self.deadlines_s[first:stop]
        return found
