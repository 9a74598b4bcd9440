"""CPU time of a request: what tells a slow moment of the machine from a slow configuration.

In: what else happened while a launch was measured, and its requests. Out: a logarithm. Pure.
"""

from __future__ import annotations

import math

from tuner.values import HostNoise


def log_effort(noise: HostNoise, requests: float) -> float | None:
    """Logarithm of the core-seconds of a request, in gateway, replicas and client together.

    Args:
        noise: of the warm-up and the measured time.
        requests: in that time.

    Returns:
        None where one of them is not known.
    """
    if not noise.server_cpu_s or not noise.client_cpu_s or requests <= 0:
        return None
    return math.log((noise.server_cpu_s + noise.client_cpu_s) / requests)
