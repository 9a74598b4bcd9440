"""The CPU time of a request."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.fakes import studies
from tuner.measurement.host import log_cpu_per_request
from tuner.values.measurement import HostNoise, Measurement


def measured(noise: HostNoise, **changes: float) -> Measurement:
    """Half a second of warm-up and two seconds at 1,000 requests/s."""
    whole = studies.measurement(5.0, np.random.default_rng(0))
    whole = dataclasses.replace(
        whole, noise=noise, warmup_s=0.5, seconds=2.0, throughput_per_s=1000.0
    )
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def test_all_parts_count() -> None:
    """The server's over warm-up and measured part, the client's over the measured part alone."""
    noise = HostNoise(client_cpu_s=0.5, server_cpu_s=2.5)
    assert log_cpu_per_request(measured(noise)) == pytest.approx(math.log(0.001 + 0.00025))


@pytest.mark.parametrize(
    "noise",
    [
        HostNoise(client_cpu_s=0.5),
        HostNoise(server_cpu_s=0.5),
        HostNoise(client_cpu_s=0.5, server_cpu_s=0.0),
    ],
)
def test_a_part_that_is_not_known_tells_nothing(noise: HostNoise) -> None:
    """Half of it would be another quantity."""
    assert log_cpu_per_request(measured(noise)) is None


def test_nothing_is_told_of_no_request() -> None:
    """A launch that answered nothing has no CPU time of a request."""
    noise = HostNoise(client_cpu_s=0.5, server_cpu_s=2.5)
    assert log_cpu_per_request(measured(noise, throughput_per_s=0.0)) is None
