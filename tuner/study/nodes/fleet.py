"""Machines that measure for one study: they must be alike, and each measures whole rounds.

A difference between default and best counts within a round, and a round is measured on one machine.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from tuner.errors import NodeLost, TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.values.configuration import Configuration

T = TypeVar("T")
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

    def close_rounds(self) -> None:
        """See `MeasuringNode.close_rounds`."""

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
_Event = str | tuple[int | None, _Round | tuple[StudyNode, Exception]]
"""What a machine says, or a stream with its round, or with the machine that was lost and why."""


class FleetRounds:
    """Rounds that several machines measure at once (`verification.MeasuresRounds`).

    Each machine measures round after round, in alternating order, and every other one begins reversed.
    `round` returns them in the order in which they began: in the order of their ends, slow and failing
    rounds would be missing at the end.
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
        """Begin at the round `first`, which names the streams of arrivals; lost nodes are removed."""
        self._nodes = nodes
        self._configurations = arms
        self._latency_s = latency_s
        self._streams = itertools.count(first)
        self._next = first
        self._early: dict[int, _Round | None] = {}
        """Rounds that have ended before others that began earlier; None: its machine was lost."""
        self._say = say
        self._done: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._measure, args=[node, place], daemon=True)
            for place, node in enumerate(nodes)
        ]

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self._configurations)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self._ending.set()
        if kind is None:  # otherwise the machines are given back, which ends their calls
            for thread in self._threads:
                thread.join()

    def round(self, arms: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        """Yield one evaluation per arm, all on the same machine.

        Raises:
            TunerError: no machine is left.
        """
        done = None
        while done is None:
            while self._next not in self._early:
                if not self._nodes:
                    raise TunerError("no machine is left to measure on; see the notes of the study")
                self._take(self._done.get())
            done = self._early.pop(self._next)
            self._next += 1
        for role in arms:
            yield role, done[role]

    def _take(self, event: _Event) -> None:
        if isinstance(event, str):
            self._say(event)
            return
        stream, found = event
        if stream is not None:
            self._early[stream] = found if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            return
        node, error = found
        if not isinstance(error, TunerError):
            raise error
        self._nodes.remove(node)
        self._say(str(error))

    def _measure(self, node: StudyNode, place: int) -> None:
        stream = None
        try:
            for said in node.open_rounds(self._configurations, latency_s=self._latency_s):
                self._done.put(f"{node.name}: {said}")
            order = list(self._configurations)
            if place % 2:
                order.reverse()
            while not self._ending.is_set():
                stream = next(self._streams)
                found = dict(node.round(order, stream=stream))
                self._done.put((stream, found))
                stream = None
                order.reverse()
            node.close_rounds()
        except Exception as error:
            self._done.put((stream, (node, error)))
