"""Batch counts and times from Triton's statistics extension."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

BatchTimes = dict[int, tuple[int, float]]
"""Batch size -> number of batches, and their total seconds in the replica."""

TIMEOUT_S = 5.0
_STAGES = ("compute_input", "compute_infer", "compute_output")
_MAX_BYTES = 1 << 20


def batch_times(host: str, port: int, model: str) -> BatchTimes:
    """Return all batches since the model's load; empty if unsupported."""
    name = urllib.parse.quote(model, safe="")
    url = f"http://{host}:{port}/v2/models/{name}/stats"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            (found,) = json.loads(answer.read(_MAX_BYTES))["model_stats"]
        return {
            int(batch["batch_size"]): (
                int(batch["compute_infer"]["count"]),
                sum(int(batch[stage]["ns"]) for stage in _STAGES) / 1e9,
            )
            for batch in found["batch_stats"]
        }
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return {}
