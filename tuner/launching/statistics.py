"""Batch counts and times from Triton's statistics extension."""

from __future__ import annotations

import http.client
import json
import urllib.parse

from tuner.launching import readiness
from tuner.launching.readiness import ReadinessCheck

BatchTimes = dict[int, tuple[int, float]]
"""Mapping from batch size to the number of batches and their total seconds in the replica."""

TIMEOUT_S = 5.0
_MAX_BYTES = 1 << 20
_STAGES = ("compute_input", "compute_infer", "compute_output")


def batch_times(host: str, port: int, model: str) -> BatchTimes:
    """Return the batches since the model was loaded, by size; empty if unsupported."""
    name = urllib.parse.quote(model, safe="")
    request = ReadinessCheck(path=f"/v2/models/{name}/stats")
    try:
        _, data = readiness.send(host, port, request, TIMEOUT_S, max_bytes=_MAX_BYTES)
        (found,) = json.loads(data)["model_stats"]
        return {
            int(batch["batch_size"]): (
                int(batch["compute_infer"]["count"]),
                sum(int(batch[stage]["ns"]) for stage in _STAGES) / 1e9,
            )
            for batch in found["batch_stats"]
        }
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return {}
