"""The CPU time of a request."""

from __future__ import annotations

import math

import pytest

from tuner.measurement.effort import log_effort
from tuner.values import HostNoise


def test_all_parts_count() -> None:
    """Gateway and replicas (the server) and the client, over all requests."""
    noise = HostNoise(client_cpu_s=0.5, server_cpu_s=1.5)
    assert log_effort(noise, 1000) == pytest.approx(math.log(0.002))


@pytest.mark.parametrize(
    ("noise", "requests"),
    [
        (HostNoise(client_cpu_s=0.5), 1000),
        (HostNoise(server_cpu_s=0.5), 1000),
        (HostNoise(client_cpu_s=0.5, server_cpu_s=0.0), 1000),
        (HostNoise(client_cpu_s=0.5, server_cpu_s=1.0), 0),
    ],
)
def test_a_part_that_is_not_known_tells_nothing(noise: HostNoise, requests: float) -> None:
    """Half of it would be another quantity."""
    assert log_effort(noise, requests) is None
