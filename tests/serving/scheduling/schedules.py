"""How many schedules the laws of the schedulers are tried with: 100, or as many as `LUTHIER_SCHEDULES` says."""

import os

from hypothesis import HealthCheck, settings

schedules = settings(
    max_examples=int(os.environ.get("LUTHIER_SCHEDULES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
