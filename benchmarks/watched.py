"""A closed loop of clients while something is done to their server, and a probe beside them.

In: a server, what the probe keeps of an answer, and a thread that does it. Out: `Watched`, what clients and
probe saw. Knows nothing of what is done.
"""

from __future__ import annotations

import dataclasses
import http
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import open_loop
import probe
import result
import server_process

from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan

CLIENTS = 20
TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the clients and the probe saw."""

    load: PhaseResult
    probed: probe.Probe

    @property
    def requests(self) -> int:
        """Of both."""
        return len(self.load.records) + len(self.probed.answers)

    @property
    def failed(self) -> int:
        """Requests of both that were not answered with 200."""
        return (
            int(np.count_nonzero(self.load.records.status != http.HTTPStatus.OK))
            + self.probed.failed
        )

    def table(self, rows: Sequence[tuple[str, str]]) -> result.Table:
        """What the clients saw, with these rows amid it."""
        records = self.load.records
        took_ms = 1e3 * (records.finished_s - records.intended_s)
        return result.Table(
            title=f"`resnet`, {CLIENTS} clients",
            head=("what", "figure"),
            rows=[
                ("requests", f"{self.requests:,}"),
                ("failed", f"{self.failed:,}"),
                *rows,
                ("round trip p50 ms", f"{np.quantile(took_ms, 0.5):.1f}"),
                ("round trip p99 ms", f"{np.quantile(took_ms, 0.99):.1f}"),
                ("round trip longest ms", f"{took_ms.max():.0f}"),
            ],
        )


def watch(
    where: server_process.Served,
    model: str,
    doing: threading.Thread,
    *,
    seconds: float,
    read: Callable[[dict[str, Any], bytes], Any],
    ready: Callable[[probe.Probe], None] | None = None,
) -> Watched:
    """Load, do and look, all at once.

    Args:
        where: the server.
        model: the name under which it serves `resnet`.
        doing: started here, when the probe is ready, and joined.
        seconds: of load.
        read: what the probe keeps of an answer.
        ready: if given, returns when the probe has seen enough to begin.
    """
    with LoadGenerator() as generator:
        sent = open_loop.images(where.port, model)
        generator.set_payloads(sent)
        with probe.Probe(
            where.port, sent.path, sent.requests[0], sent.headers, read=read
        ) as probed:
            if ready is not None:
                ready(probed)
            doing.start()
            load = generator.run(
                PhasePlan(
                    host="127.0.0.1",
                    port=where.port,
                    concurrency=CLIENTS,
                    seconds=seconds,
                    timeout_s=TIMEOUT_S,
                )
            )
            doing.join(2 * TIMEOUT_S)
    return Watched(load=load, probed=probed)
