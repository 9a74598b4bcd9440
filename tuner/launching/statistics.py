"""What a server says of its batches: the statistics extension of Triton, which the serving core has.

In: where it listens, and the model's name. Out: how many batches of each size there were, and how long
they took in the replica. Blocking, with a timeout.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

BatchTimes = dict[int, tuple[int, float]]
"""By size of a batch: how many there were, and the seconds of their stages in the replica together."""

TIMEOUT_S = 5.0
_STAGES = ("compute_input", "compute_infer", "compute_output")
_MOST_BYTES = 1 << 20


def batch_times(host: str, port: int, model: str) -> BatchTimes:
    """All batches of a model since it was loaded; empty where the server does not tell."""
    name = urllib.parse.quote(model, safe="")
    url = f"http://{host}:{port}/v2/models/{name}/stats"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            (found,) = json.loads(answer.read(_MOST_BYTES))["model_stats"]
        return {
            int(batch["batch_size"]): (
                int(batch["compute_infer"]["count"]),
                sum(int(batch[stage]["ns"]) for stage in _STAGES) / 1e9,
            )
            for batch in found["batch_stats"]
        }
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return {}
