"""Trials of one search on several machines at once.

One search asks and tells; each machine evaluates one configuration at a time, alone. Proposals take
into account what is being evaluated (`AveragedModel.expecting`), and the model knows that machines
differ (`tuner.sampling.surrogates.machine_speed`).

A machine leaves the study when it is lost, when the default fails there (after `FAILURES` failures in
a row, or any at the end) though it works elsewhere, and when it is slower than the others by more than the
model expects (`machine_report.slow_node`). What was lost there, or failed since its last success, is
evaluated again, and those failures count against no configuration. One with which a second machine is lost
has failed: it may be what takes them down.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, Protocol, Self, TypeVar

from tuner.errors import TunerError
from tuner.evaluation.evaluation import Evaluation, Stopwatch
from tuner.load_generator.plan import Race
from tuner.study import machine_report
from tuner.study.nodes.fleet import FAILURES
from tuner.study.search import ProposedTrial, Search
from tuner.values.configuration import Configuration
from tuner.values.trial import Outcome, Trial

_log = logging.getLogger(__name__)


class EvaluatingNode(Protocol):
    """Machine that evaluates configurations, one at a time."""

    @property
    def name(self) -> str:
        """Name of the machine."""

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Evaluate a configuration (see `Evaluator.evaluate`).

        Raises:
            NodeLost: the machine does not answer any more.
        """


NodeT = TypeVar("NodeT", bound=EvaluatingNode)


class ParallelSearch(Generic[NodeT]):
    """Search whose trials run on several machines at once. From one thread."""

    def __init__(
        self,
        search: Search,
        nodes: list[NodeT],
        *,
        used_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """Take machines.

        Args:
            nodes: those that leave the study are removed.
            used_s: returns the seconds that the study has used.
            say: called with each note.
        """
        self.search = search
        self._used_s = used_s
        self._say = say
        self._nodes = nodes
        self._free = list(reversed(nodes))
        self._running: dict[Future[Evaluation], tuple[ProposedTrial | None, NodeT]] = {}
        """Evaluations by their futures; None is a check with the default, which is no trial."""
        self._failed: dict[str, list[Trial]] = collections.defaultdict(list)
        """Trials that failed since the last success, by machine."""
        self._slow: dict[str, str] = {}
        """Machines that are left out when their evaluation ends, and how slow they are."""
        self._threads = ThreadPoolExecutor(len(nodes), thread_name_prefix="node")

    def __enter__(self) -> Self:
        self.search.use_nodes(len(self._nodes))
        self.search.check_nodes(len(self._nodes))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def stop_reason(self, used_s: float) -> str | None:
        """Return why the search has ended, or None as long as trials run or may begin."""
        return None if self._running else self.search.stop_reason(used_s)

    def step(self) -> Trial | None:
        """Keep the machines busy until an evaluation has ended; return its trial, if there is one.

        Raises:
            TunerError: no machine is left.
        """
        self._begin()
        if not self._nodes:
            raise TunerError("no machine is left to measure on; see the notes of the study")
        if not self._running:
            return None  # the time has ended since the caller asked
        ended, _ = wait(self._running, return_when=FIRST_COMPLETED)
        future = min(ended, key=lambda one: _number(self._running[one][0]))
        proposed, node = self._running.pop(future)
        try:
            evaluation = future.result()
        except TunerError as error:
            lost = None if proposed is None else self._give_up(proposed, node, str(error))
            self._remove(node, str(error))
            return lost
        if proposed is None:
            self._judge_default(node, evaluation)
            return None
        trial = self.search.conclude(proposed, evaluation)
        self._judge(node, trial)
        return trial

    @property
    def _has_room(self) -> bool:
        """Whether the budget has trials that have not begun."""
        return len(self.search.trials) + len(self._running) < self.search.budget.trials

    def _begin(self) -> None:
        search = self.search
        while self._free and self._has_room:
            if search.stop_reason(self._used_s()) is not None:
                return
            node = self._free.pop()
            proposed = search.propose()
            self._evaluate(proposed, node, proposed.configuration, proposed.race)

    def _evaluate(
        self,
        proposed: ProposedTrial | None,
        node: NodeT,
        configuration: Configuration,
        race: Race | None,
    ) -> None:
        future = self._threads.submit(node.evaluate, configuration, race)
        self._running[future] = proposed, node

    def _give_up(self, proposed: ProposedTrial, node: NodeT, why: str) -> Trial | None:
        """End a trial whose machine was lost; its configuration is queued once, then it has failed."""
        search, running = self.search, proposed.running
        if not running.is_second:
            search.store.give_up(running, why)
            search.store.enqueue(running.configuration, origin=running.origin, is_second=True)
            return None
        reason = f"a second machine was lost with this configuration: {why}"
        outcome = Outcome(status="failed", cause="crash", reason=reason)
        evaluation = Evaluation.of(running.configuration, Stopwatch().startup(), outcome)
        return search.conclude(proposed, dataclasses.replace(evaluation, node=node.name))

    def _judge(self, node: NodeT, trial: Trial) -> None:
        """Use the machine further, or leave it out."""
        self._find_slow()
        failed = self._failed[node.name]
        if trial.measured is not None:
            failed.clear()
        else:
            failed.append(trial)
        if node.name in self._slow and len(self._nodes) > 1:
            self._remove(node, f"the machine {node.name} is left out: it {self._slow[node.name]}")
        else:
            self._free.append(node)
        self._check_doubtful()

    def _check_doubtful(self) -> None:
        """Evaluate the default on free machines whose last trials failed, if it works elsewhere."""
        for node in tuple(self._free):
            failed = len(self._failed[node.name])
            is_doubtful = failed >= (FAILURES if self._has_room else 1)
            if is_doubtful and machine_report.has_worked(self.search, but_on=node.name):
                self._free.remove(node)
                self._evaluate(None, node, self.search.problem.default, None)

    def _find_slow(self) -> None:
        names = [node.name for node in self._nodes if node.name not in self._slow]
        if (slow := machine_report.slow_node(self.search, names)) is not None:
            name, how = slow
            self._slow[name] = how

    def _judge_default(self, node: NodeT, evaluation: Evaluation) -> None:
        if evaluation.measurement is None:
            self._remove(
                node,
                f"the machine {node.name} is left out: even the default fails there "
                f"({evaluation.outcome.reason}), though it works elsewhere",
            )
            return
        self._failed[node.name].clear()
        self._free.append(node)

    def _remove(self, node: NodeT, why: str) -> None:
        self._nodes.remove(node)
        if self._nodes:
            self.search.use_nodes(len(self._nodes))
        if failed := self._failed.pop(node.name, []):
            self.search.disregard(failed)
        self._say(why)
        _log.warning("machine left out", extra={"fields": {"node": node.name, "reason": why}})


def _number(proposed: ProposedTrial | None) -> int:
    return -1 if proposed is None else proposed.running.trial.number
