"""Fit the number of connections to the limit on open files, which is raised if possible."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

RESERVE = 256
"""Files kept for everything else: replicas, models, state, the admin port, rejected connections."""


def room_for(connections: int) -> int:
    """Return how many of the wanted connections fit into the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVE
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return connections
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # the system's limit was lowered below the process's
            wanted = soft
    room = max(1, wanted - RESERVE)
    if room < connections:
        log.warning(
            "fewer connections than server.max_connections: the limit on open files (ulimit -n) is low",
            extra={"connections": room, "open_files": wanted},
        )
    return min(room, connections)
