"""Little's law as a check of the load: requests in flight = throughput x mean latency.

A large difference in a closed loop means too few requests in flight, or a phase too short for its
latencies. Little 1961, Operations Research 9:383.
"""

from __future__ import annotations


def littles_law_error(throughput_per_s: float, mean_s: float, concurrency: int) -> float:
    """|throughput x mean / concurrency - 1| over finished requests of any status."""
    return abs(throughput_per_s * mean_s / concurrency - 1)
