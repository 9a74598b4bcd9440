"""Little's law as a check of the load: requests in flight = throughput x mean round trip.

In: figures of a measured part. Out: how far the load was from its concurrency. In a closed loop at
N the two sides agree but for the edges of the window and for what the client itself took between an
answer and the next request. A large difference means that fewer requests were in flight than asked
for (a client that is too slow, connections lost or waiting to be replaced) or that the phase was
too short for its round trips.

Little 1961, Operations Research 9:383.
"""

from __future__ import annotations


def little_error(throughput_per_s: float, mean_s: float, concurrency: int) -> float:
    """|throughput x mean / concurrency - 1|, of all finished requests, whatever their status."""
    return abs(throughput_per_s * mean_s / concurrency - 1)
