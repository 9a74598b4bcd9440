"""Node agents of one gateway by machine, and the machines that are the last choice for a while.

A machine that was lost, or on which a start failed, is avoided until its agent has answered since,
and at least for a pause that doubles with each further failure until a start there works. An agent
that answers Ray shows that its machine lives, not that the gateway can use it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

AGENT_S = 60.0
"""Seconds in which an agent must have started: Ray starts a Python process for it."""
FIRST_PAUSE_S = 1.0
LONGEST_S = 90.0
"""Seconds after which a machine is tried again in any case: longer than Ray takes to notice a loss."""

Reach = tuple[str, int, str | None]
"""Host, port and certificate."""
Agent = Callable[[], Future[Reach]]
"""Asks an agent's parent where it listens; the agent ends once nobody holds this."""


@dataclasses.dataclass(slots=True)
class _Avoided:
    since_s: float
    pause_s: float
    until_s: float
    asked: tuple[Agent, Future[Reach]] | None = None
    """An agent that was asked since, and its answer."""


class NodeAgents:
    """Agents by machine. Thread-safe."""

    def __init__(
        self,
        start: Callable[[str], Agent],
        *,
        ended: type[Exception],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start agents with `start`; an answer that is `ended` says that there is none any more."""
        self._start = start
        self._ended = ended
        self._clock = clock
        self._agents: dict[str, Agent] = {}
        self._avoided: dict[str, _Avoided] = {}
        self._lock = threading.Lock()

    def reach(self, node: str) -> Reach:
        """Return where a machine's agent listens, which is started if there is none."""
        with self._lock:
            agent = self._agents.get(node)
            if agent is None:
                agent = self._agents[node] = self._start(node)
        try:
            found = agent().result(AGENT_S)
        except Exception as error:
            self._drop(node, agent)
            self.avoid(node)
            if isinstance(error, TimeoutError):
                text = f"the node agent did not start within {AGENT_S:g} s"
                raise TimeoutError(text) from None
            raise
        with self._lock:  # somebody else may have dropped it meanwhile
            is_held = self._agents.setdefault(node, agent) is agent
        return found if is_held else self.reach(node)

    def avoid(self, node: str) -> None:
        """Make a machine the last choice; failures while it is that count once."""
        now_s = self._clock()
        with self._lock:
            before = self._avoided.get(node)
            pause_s = FIRST_PAUSE_S
            if before is not None:
                is_avoided = now_s < before.until_s
                pause_s = before.pause_s if is_avoided else min(LONGEST_S, 2.0 * before.pause_s)
            self._avoided[node] = _Avoided(now_s, pause_s, now_s + LONGEST_S)

    def trust(self, node: str) -> None:
        """Forget the failures of a machine on which a start has worked."""
        with self._lock:
            self._avoided.pop(node, None)

    def is_avoided(self, node: str) -> bool:
        """Whether a machine is the last choice now."""
        avoided = self._avoided.get(node)
        return avoided is not None and self._clock() < avoided.until_s

    def look(self) -> None:
        """Ask the agents of avoided machines, and take note of what was answered."""
        for node, avoided in list(self._avoided.items()):
            if avoided.asked is None:
                asked = self._agents.get(node)
                if asked is None:
                    continue
                avoided.asked = asked, asked()
            agent, answer = avoided.asked
            if not answer.done():
                continue
            error = answer.exception()
            if error is None:
                avoided.until_s = avoided.since_s + avoided.pause_s
                continue
            avoided.asked = None  # it is still away
            if isinstance(error, self._ended):
                self._drop(node, agent)

    def _drop(self, node: str, agent: Agent) -> None:
        """Let go of an agent, unless another one has taken its place."""
        with self._lock:
            if self._agents.get(node) is agent:
                del self._agents[node]
