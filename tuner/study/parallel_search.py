"""Trials of one search on several machines at once.

One search asks and tells; each machine evaluates one configuration at a time, alone. Proposals take
into account what is being evaluated (`AveragedModel.expecting`), and the model knows that machines
differ (`tuner.sampling.surrogates.machine_speed`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol, Self

from tuner.errors import NodeLost, TunerError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import Race
from tuner.study.search import ProposedTrial, Search
from tuner.values.configuration import Configuration
from tuner.values.trial import Trial

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


class ParallelSearch:
    """Search whose trials run on several machines at once. From one thread."""

    def __init__(
        self,
        search: Search,
        nodes: Sequence[EvaluatingNode],
        *,
        used_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """Take machines; `used_s` returns the seconds that the study has used."""
        self.search = search
        self._used_s = used_s
        self._say = say
        self._free = list(reversed(nodes))
        self._running: dict[Future[Evaluation], tuple[ProposedTrial, EvaluatingNode]] = {}
        self._threads = ThreadPoolExecutor(len(nodes), thread_name_prefix="node")

    def __enter__(self) -> Self:
        self.search.check_nodes(len(self._free))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def stop_reason(self, used_s: float) -> str | None:
        """Return why the search has ended, or None as long as trials run or may begin."""
        return None if self._running else self.search.stop_reason(used_s)

    def step(self) -> Trial:
        """Keep the machines busy until a trial has ended, and return it.

        Raises:
            TunerError: all machines are lost.
        """
        while True:
            self._begin()
            if not self._running:
                raise TunerError("no machine is left to measure on")
            ended, _ = wait(self._running, return_when=FIRST_COMPLETED)
            future = min(ended, key=lambda one: self._running[one][0].running.trial.number)
            proposed, node = self._running.pop(future)
            try:
                evaluation = future.result()
            except NodeLost as error:
                self.search.give_up(proposed, str(error))
                self._say(str(error))
                _log.warning("machine lost", extra={"fields": {"node": node.name}})
                continue
            self._free.append(node)
            return self.search.conclude(proposed, evaluation)

    def _begin(self) -> None:
        search = self.search
        while self._free and len(search.trials) + len(self._running) < search.budget.trials:
            if search.stop_reason(self._used_s()) is not None:
                return
            node = self._free.pop()
            proposed = search.propose()
            future = self._threads.submit(node.evaluate, proposed.configuration, proposed.race)
            self._running[future] = proposed, node
