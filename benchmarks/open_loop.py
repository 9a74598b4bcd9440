"""Open-loop load for benchmarks: what is sent, one phase at a rate, and the highest rate that holds.

In: where a server is, a rate, an objective. Out: `Seen`, in seconds from when each request was due
(coordinated omission: a server that falls behind is charged for the wait), and rates. Knows nothing of
what a benchmark wants to know.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable

import numpy as np
import result
import server_process
from numpy.typing import NDArray

from serving import zoo
from serving.values import Signature
from tuner.errors import LoadGeneratorFailed
from tuner.load_generator import payload_files
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import PhasePlan, Warmup

CONNECTIONS = 512
"""Most requests in flight: more than any server here may hold within its objective."""
IMAGES = 64
LEAST = 0.01
"""Share of the lowest rate that was expected below which nothing is looked for."""
MODELS = pathlib.Path(__file__).resolve().parent / "models"
"""Where the models of the benchmarks are."""
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The requests that were due in the measured part of a phase."""

    rate_per_s: float
    seconds: float
    took_s: NDArray[np.float64]  # (n,) from when it was due to its answer
    status: NDArray[np.int16]  # (n,) 0 without an answer
    late_s: NDArray[np.float64]  # (n,) from when it was due to when it was sent
    client_cpu_s: float

    def answered(self, within_s: float = float("inf")) -> int:
        """Requests answered with 200 in that time."""
        return int(np.count_nonzero((self.status == 200) & (self.took_s <= within_s)))

    def quantile_s(self, share: float) -> float:
        """Time within which that share of all requests was answered; infinite where they were not."""
        took_s = np.where(self.status == 200, self.took_s, np.inf)
        return float(np.quantile(took_s, share, method="higher"))


def images(port: int, model: str, *, timeout_s: float | None = None) -> Payloads:
    """Single images for a model that takes them; with a time limit of their own where one is given."""
    _, _, answer = server_process.request(port, "GET", f"/v2/models/{model}")
    sample = zoo.find("linear").sample
    assert sample is not None
    found = payload_files.from_npz(sample, Signature.from_json(json.loads(answer)), model=model)
    length = int(found.headers[HEADER_LENGTH])
    bodies, header = [], b""
    for body in found.requests[:IMAGES]:
        said = json.loads(body[:length])
        if timeout_s is not None:
            said["parameters"]["timeout"] = round(1e6 * timeout_s)
        header = json.dumps(said, separators=(",", ":")).encode()  # as long for every image
        bodies.append(header + body[length:])
    return dataclasses.replace(
        found, requests=tuple(bodies), headers={**found.headers, HEADER_LENGTH: str(len(header))}
    )


def closed(generator: LoadGenerator, port: int, concurrency: int, seconds: float) -> float:
    """Answers per second of a closed loop: about what the server can do."""
    found = generator.run(
        PhasePlan(host="127.0.0.1", port=port, concurrency=concurrency, seconds=seconds)
    )
    records = found.records
    is_measured = (records.finished_s > found.warmup_end_s) & (
        records.finished_s <= found.measured_end_s
    )
    return float(np.count_nonzero(is_measured & (records.status == 200))) / found.measured_s


def drive(
    generator: LoadGenerator,
    port: int,
    rate_per_s: float,
    seconds: float,
    *,
    warmup_s: float = 0.4,
    timeout_s: float = 2.0,
    seed: int = 0,
) -> Seen:
    """One phase of Poisson arrivals.

    Raises:
        LoadGeneratorFailed: the server is gone, or no connection has had an answer for `timeout_s`.
    """
    found = generator.run(
        PhasePlan(
            host="127.0.0.1",
            port=port,
            concurrency=CONNECTIONS,
            rate_per_s=rate_per_s,
            seconds=seconds,
            seed=seed,
            timeout_s=timeout_s,
            warmup=Warmup(seconds=warmup_s),
        )
    )
    records = found.records
    is_due = (records.intended_s > found.warmup_end_s) & (
        records.intended_s <= found.measured_end_s
    )
    return Seen(
        rate_per_s=rate_per_s,
        seconds=found.measured_s,
        took_s=(records.finished_s - records.intended_s)[is_due],
        status=records.status[is_due],
        late_s=(records.started_s - records.intended_s)[is_due],
        client_cpu_s=found.client_cpu_s,
    )


def tried(
    what: str, generator: LoadGenerator, port: int, rate_per_s: float, seconds: float
) -> Seen | None:
    """One phase at a rate that may be too high: nothing where the server answers nothing in time."""
    try:
        return drive(generator, port, rate_per_s, seconds)
    except LoadGeneratorFailed as error:
        result.say(f"{what}: {error}")
        return None


def highest(holds: Callable[[float], bool], low: float, high: float, *, steps: int) -> float:
    """The highest rate that holds, by halving between two rates on the log scale.

    A step that does not hold is tried once more: a hiccup of the machine must not decide. Where even
    the lowest does not hold, the range is looked for below it; where the highest does, above.

    Raises:
        RuntimeError: nothing near the expected rates holds.
    """

    def is_held(rate: float) -> bool:
        return holds(rate) or holds(rate)

    factor = high / low
    least = low * LEAST
    while not is_held(low):
        if low < least:
            raise RuntimeError(
                f"not even {low:,.0f} requests/s hold; does something else run here?"
            )
        low, high = low / factor, low
    while is_held(high):
        low, high = high, high * factor
    for _ in range(steps):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_held(middle) else (low, middle)
    return low
