"""Warnings about a measurement, as sentences for people."""

from __future__ import annotations

from tuner.values.measurement import (
    LATE_S,
    MAX_LATE_SHARE,
    MAX_LITTLES_LAW_ERROR,
    HostNoise,
    Measurement,
)

MAX_CLIENT_SHARE = 0.8
"""Share of a core above which the client may be the bottleneck, as in Model Analyzer."""
MAX_STEAL_SHARE = 0.02
MAX_STOLEN = 0.05


def warnings_of(measurement: Measurement, *, cores: int, load_clients: int = 1) -> tuple[str, ...]:
    """Return reasons why the metrics may mislead.

    Args:
        cores: the machine's core count.
        load_clients: processes of the load generator, which work alike.
    """
    found = []
    if measurement.little_error is not None and measurement.little_error > MAX_LITTLES_LAW_ERROR:
        found.append(
            "throughput and mean latency disagree with the concurrency by "
            f"{100 * measurement.little_error:.0f} % (Little's law): the load was not steady, or "
            "the client or the connections could not keep it up"
        )
    late = measurement.late_share
    if late is not None and late > MAX_LATE_SHARE:
        found.append(
            f"{100 * late:.3g} % of the requests were sent more than {1e3 * LATE_S:g} ms after they "
            "were due: all connections were busy, or the client was; the wait counts"
        )
    client_s = measurement.noise.client_cpu_s
    clients_s = load_clients * measurement.seconds
    if client_s is not None and client_s > MAX_CLIENT_SHARE * clients_s:
        each = " for each of its processes" if load_clients > 1 else ""
        found.append(
            f"the load generator used {100 * client_s / clients_s:.0f} % of a core{each}, so it may "
            f"have limited the result; --load-clients {2 * load_clients} deals the load out to more"
        )
    steal_s = measurement.noise.steal_s
    whole_s = cores * (measurement.warmup_s + measurement.seconds)  # steal counts from the warm-up
    if steal_s is not None and steal_s > MAX_STEAL_SHARE * whole_s:
        share = 100 * steal_s / whole_s
        found.append(
            f"the hypervisor gave {share:.1f} % of the machine's CPU time to other machines"
        )
    return tuple(found)


def is_disturbed(noise: HostNoise, *, loaded_s: float, cores: int) -> bool:
    """Whether the host disturbed an evaluation of `loaded_s`, warm-up included."""
    stolen_s = noise.steal_s
    return stolen_s is not None and stolen_s > MAX_STOLEN * cores * max(loaded_s, 0.1)
