"""Pools: keep the wanted replicas alive under the wanted limits.

    pool --> contents (what replicas hold) --> member (one replica) --> home (their spawner)

Each knows only those to its right.
"""

from serving.pool.home import Home
from serving.pool.member import Death, Member
from serving.pool.pool import Pool

__all__ = ["Death", "Home", "Member", "Pool"]
