"""One model's queued requests by deadline, with their batches and reservations. Pure."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from serving.scheduling.clockwork.backlog import Backlog
from serving.scheduling.clockwork.shares import FlowShare


@dataclasses.dataclass(slots=True, eq=False)
class Reservations:
    """A worker's reservations for one of its models, by bucket."""

    worker: int
    backlog: Backlog
    buckets_s: list[float] = dataclasses.field(default_factory=list)
    bundles: list[BatchReservation] = dataclasses.field(default_factory=list)
    reserved_items: int = 0
    is_before_eviction: bool = False

    def add(self, bundle: BatchReservation) -> None:
        """Add a bundle after the others in its bucket."""
        place = bisect.bisect_right(self.buckets_s, bundle.bucket_s)
        self.buckets_s.insert(place, bundle.bucket_s)
        self.bundles.insert(place, bundle)

    def remove(self, bundle: BatchReservation) -> None:
        """Remove a bundle."""
        place = bisect.bisect_left(self.buckets_s, bundle.bucket_s)
        while self.bundles[place] is not bundle:
            place += 1
        del self.buckets_s[place], self.bundles[place]


@dataclasses.dataclass(slots=True, eq=False)
class BatchReservation:
    """Items of one model that a worker has reserved time to run together."""

    by: Reservations
    bucket_s: float
    until_s: float
    """Earliest deadline of its items so far, or the time of the model's eviction."""
    cost_s: float
    count: int = 0
    entries: list[PendingRequest] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, eq=False)
class PendingRequest:
    """A request whose items are each queued, with a worker, or done."""

    id: int
    open_items: int
    """Number of items without a result."""
    deadline_s: float
    """When its batch must end: some margin before the client's deadline `due_s`."""
    due_s: float
    flow: FlowShare = dataclasses.field(default_factory=FlowShare)
    cost_s: float = 0.0
    """Seconds per item charged to the flow's share."""
    is_solo: bool = False
    """Whether it runs without others, so that its parts hold adjoining items."""
    waits: int = 0
    """Number of queued items."""
    next_item: int = 0
    returned: list[int] = dataclasses.field(default_factory=list)
    """Items that workers returned without running them, the next one last."""
    losses: int = 0
    was_unrun: bool = False
    bundle: BatchReservation | None = None

    def give(self) -> int:
        """Return the next item for a worker."""
        self.waits -= 1
        if self.returned:
            return self.returned.pop()
        self.next_item += 1
        return self.next_item - 1

    def adjoining(self) -> int:
        """Return how many of the next queued items are consecutive."""
        count = 1
        while count < len(self.returned) and self.returned[-count - 1] == self.returned[-1] + count:
            count += 1
        if count < len(self.returned):
            return count
        is_one = not self.returned or self.returned[0] + 1 == self.next_item
        return self.waits if is_one else count


class BatchCandidate(NamedTuple):
    """A possible batch, by the indices of its size and of its first item."""

    place: int
    first: int


class ModelQueue:
    """Queued items of one model, earliest deadline first."""

    __slots__ = ("deadlines_s", "entries", "solo")

    def __init__(self) -> None:
        self.deadlines_s: list[float] = []
        self.entries: list[PendingRequest] = []
        self.solo: list[PendingRequest] = []
        """Requests that run alone, including some no longer queued."""

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, entry: PendingRequest, count: int) -> bool:
        """Queue items of an entry; return whether the entry is now the first."""
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

    def remove(self, entry: PendingRequest) -> None:
        """Remove all queued items of an entry."""
        place = bisect.bisect_left(self.deadlines_s, entry.deadline_s)
        entries = self.entries
        while place < len(entries) and self.deadlines_s[place] == entry.deadline_s:
            if entries[place] is entry:
                del entries[place], self.deadlines_s[place]
            else:
                place += 1
        entry.waits = 0

    def hopeless(self, before_s: float) -> list[PendingRequest]:
        """Remove and return entries due before `before_s` without changing their `waits`."""
        count = bisect.bisect_left(self.deadlines_s, before_s)
        if not count:
            return []
        found = list(dict.fromkeys(self.entries[:count]))
        del self.entries[:count], self.deadlines_s[:count]
        return found

    def choose(
        self, start_s: float, sizes: Sequence[int], estimate_s: Sequence[float]
    ) -> BatchCandidate | None:
        """Return the largest batch from `start_s`, skipping requests that would be late anyway."""
        if self.solo:
            self.solo = [entry for entry in self.solo if entry.waits]
            if self.solo:
                return self._choose_apart(start_s, sizes, estimate_s)
        deadlines_s = self.deadlines_s
        count = len(deadlines_s)
        best: BatchCandidate | None = None
        for place in range(len(sizes) - 1, -1, -1):
            size = sizes[place]
            if size > count:
                continue
            took_s = estimate_s[place]
            first = bisect.bisect_left(deadlines_s, start_s + took_s)
            if count - first < size:
                continue
            if first == 0:
                if best is None or self._all_in_time(start_s + took_s, size, sizes, estimate_s):
                    return BatchCandidate(place, 0)
                return best
            if best is None:
                best = BatchCandidate(place, first)
        return best

    def _choose_apart(
        self, start_s: float, sizes: Sequence[int], estimate_s: Sequence[float]
    ) -> BatchCandidate | None:
        """Return a batch of the first entry that can be in time and those that may join it."""
        deadlines_s, entries = self.deadlines_s, self.entries
        first = bisect.bisect_left(deadlines_s, start_s + estimate_s[0])
        if first == len(entries):
            return None
        if entries[first].is_solo:
            count = entries[first].adjoining()
        else:
            count = 1
            while (
                count < sizes[-1]
                and first + count < len(entries)
                and not entries[first + count].is_solo
            ):
                count += 1
        place = bisect.bisect_right(sizes, count) - 1
        while deadlines_s[first] < start_s + estimate_s[place]:
            place -= 1
        return BatchCandidate(place, first)

    def _all_in_time(
        self, start_s: float, gone: int, sizes: Sequence[int], estimate_s: Sequence[float]
    ) -> bool:
        left = len(self.deadlines_s) - gone
        if not left:
            return True
        place = bisect.bisect_left(sizes, min(left, sizes[-1]))
        return self.deadlines_s[gone] >= start_s + estimate_s[min(place, len(sizes) - 1)]

    def pick(self, items: Sequence[PendingRequest]) -> None:
        """Remove one item of each entry."""
        deadlines_s, entries = self.deadlines_s, self.entries
        for entry in items:
            place = bisect.bisect_left(deadlines_s, entry.deadline_s)
            while entries[place] is not entry:
                place += 1
            del entries[place], deadlines_s[place]

    def take(self, first: int, count: int) -> list[PendingRequest]:
        """Remove `count` items from index `first` on; return one entry per item."""
        stop = first + count
        found = self.entries[first:stop]
        del self.entries[first:stop], self.deadlines_s[first:stop]
        return found
