"""CPU time of a request: what tells a slow moment of the machine from a slow configuration.

In: the measurement of a launch. Out: a logarithm. Pure.
"""

from __future__ import annotations

import math

from tuner.values import Measurement


def log_effort(measurement: Measurement) -> float | None:
    """Logarithm of the core-seconds of a request, in gateway, replicas and client together.

    The server's are counted from the start of the warm-up, the client's of the measured part alone.

    Returns:
        None where one of them is not known.
    """
    noise, rate = measurement.noise, measurement.throughput_per_s
    if not noise.server_cpu_s or not noise.client_cpu_s or rate <= 0 or measurement.seconds <= 0:
        return None
    server = noise.server_cpu_s / (rate * (measurement.warmup_s + measurement.seconds))
    return math.log(server + noise.client_cpu_s / (rate * measurement.seconds))
