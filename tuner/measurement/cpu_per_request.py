"""CPU time per request, which tells machine drift from a slow configuration."""

from __future__ import annotations

import math

from tuner.values.measurement import Measurement


def log_cpu_per_request(measurement: Measurement) -> float | None:
    """Log of core-seconds per request in gateway, replicas and client, if known.

    Server time counts from the start of the warm-up, client time from its end.
    """
    noise, rate = measurement.noise, measurement.throughput_per_s
    if not noise.server_cpu_s or not noise.client_cpu_s or rate <= 0 or measurement.seconds <= 0:
        return None
    server = noise.server_cpu_s / (rate * (measurement.warmup_s + measurement.seconds))
    return math.log(server + noise.client_cpu_s / (rate * measurement.seconds))
