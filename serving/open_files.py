"""How many connections the process may hold: each is an open file, and the kernel limits these.

In: the connections that are wanted; out: those that there is room for. Raises the process's own limit where
the system lets it.
"""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

RESERVE = 256
"""Files for everything else: replicas, models, the state, the admin port, connections that are being refused."""


def room_for(connections: int) -> int:
    """How many of so many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVE
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return connections
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # the system's own limit has been lowered below the process's
            wanted = soft
    room = max(1, wanted - RESERVE)
    if room < connections:
        log.warning(
            "fewer connections than server.max_connections: the limit on open files (ulimit -n) is low",
            extra={"connections": room, "open_files": wanted},
        )
    return min(room, connections)
