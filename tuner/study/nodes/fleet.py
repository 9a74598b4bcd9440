"""Machines that measure for one study: they must be alike, and each measures whole rounds.

A difference between default and best counts within a round, and a round is measured on one machine.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from tuner.errors import NodeLost, TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.values.configuration import Configuration

T = TypeVar("T")
FAILURES = 3
"""Failures in a row after which a machine is in doubt."""
LATE = 2.0
"""How long the end waits for rounds that nobody needs any more, in times of the longest so far."""
TOLERATED = {"memory_mb": 0.05}
"""Facts that may differ by this share: kernels of equal machines reserve a little more or less."""


class StudyNode(Protocol):
    """One machine's `MeasuringNode`, from elsewhere; every call may raise NodeLost."""

    name: str
    is_here: bool
    """Whether this process runs on it, too."""

    def open(self, first: Configuration) -> Mapping[str, Any]:
        """See `MeasuringNode.open`."""

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """See `MeasuringNode.evaluate`."""

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """See `MeasuringNode.evaluate_at`."""

    def open_rounds(self, arms: Mapping[str, Configuration], *, latency_s: float) -> Sequence[str]:
        """See `MeasuringNode.open_rounds`."""

    def round(self, arms: Sequence[str], *, stream: int) -> Sequence[tuple[str, Evaluation]]:
        """See `MeasuringNode.round`."""

    def ask(self, method: str, *arguments: object) -> Any:
        """Call another method of the machine's `MeasuringNode`."""


def on_one(
    nodes: list[StudyNode], measure: Callable[[StudyNode], T], *, say: Callable[[str], None]
) -> T:
    """Let the first machine measure; if it is lost, it is removed, and the next begins anew.

    Raises:
        NodeLost: no machine is left.
    """
    while True:
        try:
            return measure(nodes[0])
        except NodeLost as error:
            say(str(error))
            del nodes[0]
            if not nodes:
                raise


def check_alike(told: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UsageError, with the first difference, unless all machines told the same facts."""
    (first, wanted), *others = told.items()
    for name, facts in others:
        for what, found, expected in _differences(facts, wanted):
            raise UsageError(
                f"--workers: the machines {first} and {name} differ in {what} ({expected} and {found}), "
                "so trials on them cannot be compared; use machines that are alike"
            )


def _differences(
    facts: Mapping[str, Any], wanted: Mapping[str, Any], inside: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in {**wanted, **facts}:
        one, other = facts.get(key), wanted.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{inside}{key} ")
        elif one != other and not _is_about(key, one, other):
            yield f"{inside}{key}", one, other


def _is_about(key: str, one: Any, other: Any) -> bool:
    share = TOLERATED.get(key)
    return (
        share is not None and None not in {one, other} and math.isclose(one, other, rel_tol=share)
    )


_Round = Mapping[str, Evaluation]
_Event = str | tuple[int | None, StudyNode, _Round | Exception]
"""What a machine says, or a stream with its machine and round, or why there is none."""


class FleetRounds:
    """Rounds that several machines measure at once (`verification.MeasuresRounds`).

    Each machine measures round after round, in alternating order, and every other one begins reversed.
    `round` returns them in the order in which they began: in the order of their ends, slow and failing
    rounds would be missing at the end.

    A round in which every arm failed tells of its machine while another one works, and is left out; after
    `FAILURES` in a row so is the machine.
    """

    def __init__(
        self,
        nodes: list[StudyNode],
        arms: Mapping[str, Configuration],
        *,
        latency_s: float,
        first: int,
        say: Callable[[str], None],
    ) -> None:
        """Begin at the round `first`, which names the streams of arrivals; nodes that leave are removed."""
        self._nodes = nodes
        self._configurations = arms
        self._latency_s = latency_s
        self._streams = itertools.count(first)
        self._next = first
        self._early: dict[int, tuple[StudyNode, _Round]] = {}
        """Rounds that have ended before others that began earlier; empty if the machine was lost."""
        self._failed: dict[str, int] = {}
        """Rounds in a row in which every arm failed, by machines that have ended one."""
        self._longest_s = 0.0
        self._say = say
        self._done: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._threads = {
            node.name: threading.Thread(target=self._measure, args=[node, place], daemon=True)
            for place, node in enumerate(nodes)
        }

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self._configurations)

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self._ending.set()
        if kind is None:  # otherwise the machines are given back, which ends their calls
            until_s = time.monotonic() + LATE * self._longest_s
            for thread in self._threads.values():
                thread.join(max(0.0, until_s - time.monotonic()))
            # What needs one machine takes the first.
            self._nodes.sort(key=lambda node: self._threads[node.name].is_alive())

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm, all on the same machine.

        Raises:
            TunerError: no machine is left.
        """
        while (done := self._pop_next()) is None:
            if not self._nodes:
                raise TunerError("no machine is left to measure on; see the notes of the study")
            self._take(self._done.get())
        for role in arms:
            yield role, done[role]

    def _pop_next(self) -> _Round | None:
        """Return the next round that counts, or None as long as it is not known."""
        while self._next in self._early:
            counts = self._counts(*self._early[self._next])
            if counts is None:
                break
            _, done = self._early.pop(self._next)
            self._next += 1
            if counts:
                return done
        return None

    def _counts(self, node: StudyNode, done: _Round) -> bool | None:
        """Whether a round is one of the arms, not of a broken machine; None: others will tell."""
        if _has_measured(done):
            return True
        if node not in self._nodes or self._others_work(node):
            return False
        failed = [self._failed.get(one.name, 0) for one in self._nodes if one is not node]
        return True if min(failed, default=FAILURES) >= FAILURES else None

    def _others_work(self, node: StudyNode) -> bool:
        return any(self._failed.get(one.name) == 0 for one in self._nodes if one is not node)

    def _take(self, event: _Event) -> None:
        if isinstance(event, str):
            self._say(event)
            return
        stream, node, found = event
        if isinstance(found, Exception) and not isinstance(found, TunerError):
            raise found
        done: _Round = {} if isinstance(found, Exception) else found
        if stream is not None:
            self._early[stream] = node, done
        failed = 0 if _has_measured(done) else self._failed.get(node.name, 0) + 1
        self._failed[node.name] = failed
        if node not in self._nodes:
            return
        if isinstance(found, Exception):
            self._nodes.remove(node)
            self._say(str(found))
        elif failed >= FAILURES and self._others_work(node):
            self._nodes.remove(node)
            reason = next(iter(done.values())).outcome.reason
            self._say(
                f"the machine {node.name} is left out: every arm failed there in {failed} rounds "
                f"in a row ({reason}), though others work"
            )

    def _measure(self, node: StudyNode, place: int) -> None:
        stream = None
        try:
            for said in node.open_rounds(self._configurations, latency_s=self._latency_s):
                self._done.put(f"{node.name}: {said}")
            order = list(self._configurations)
            if place % 2:
                order.reverse()
            while node in self._nodes and not self._ending.is_set():
                stream, begun_s = next(self._streams), time.monotonic()
                done = dict(node.round(order, stream=stream))
                self._longest_s = max(self._longest_s, time.monotonic() - begun_s)
                self._done.put((stream, node, done))
                stream = None
                order.reverse()
        except Exception as error:
            self._done.put((stream, node, error))


def _has_measured(done: _Round) -> bool:
    return any(one.measurement is not None for one in done.values())
