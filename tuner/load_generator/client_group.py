"""Load generator of several client processes, for what one cannot drive.

The clients open their connections, begin at one moment, end the warm-up at one moment, and end the
measured part at one moment; in between each is a load generator of its own.
"""

from __future__ import annotations

import contextlib
import time
from typing import Self

from tuner.errors import LoadGeneratorFailed
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.payloads import MultiModelPayloads, Payloads
from tuner.load_generator.phase import measured_s
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan
from tuner.load_generator.shares import deal, join

LEAD_S = 0.05
"""Time from the order to a moment that all clients share; more than a tick and a message take."""


class LoadGeneratorGroup:
    """Context manager that owns several client processes, with the methods of `LoadGenerator`."""

    def __init__(self, clients: int) -> None:
        self._clients = [LoadGenerator() for _ in range(clients)]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for client in self._clients:
                started.enter_context(client)
            started.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the clients."""
        return [pid for client in self._clients for pid in client.pids]

    def set_payloads(self, payloads: Payloads | MultiModelPayloads) -> None:
        """Set the payloads for the following phases."""
        for client in self._clients:
            client.set_payloads(payloads)

    def run(self, plan: PhasePlan) -> PhaseResult:
        """Run one phase, as `LoadGenerator.run` does; if a client is lost, all are replaced."""
        count = len(self._clients)
        if plan.concurrency < count:
            raise LoadGeneratorFailed(
                f"{count} clients for a concurrency of {plan.concurrency}: expected a connection "
                "for each; give fewer --load-clients"
            )
        plans = deal(plan, count)
        try:
            for client, share in zip(self._clients, plans, strict=True):
                client.begin(share)
            self._order("begin", self._moment("opened"))
            begun_s = self._moment("warm")
            self._order("measure", begun_s)
            if plan.waits_for_answers:
                enough_s = self._moment("enough") - begun_s
                self._order("end", begun_s + measured_s(plan, enough_s))
            results = [client.end() for client in self._clients]
        except BaseException:
            self.close()  # the others are in mid-phase
            raise
        return join(plans, results)

    def close(self) -> None:
        """Kill the client processes."""
        for client in self._clients:
            client.close()

    def _moment(self, event: str) -> float:
        """Wait until all clients are that far, and return a moment shortly after it."""
        for client in self._clients:
            client.await_moment(event)
        return time.monotonic() + LEAD_S

    def _order(self, what: str, at_s: float) -> None:
        for client in self._clients:
            client.order({"do": what, "at_s": at_s})


def make_load_generator(clients: int) -> LoadGenerator | LoadGeneratorGroup:
    """Return a load generator of so many client processes."""
    return LoadGenerator() if clients == 1 else LoadGeneratorGroup(clients)
