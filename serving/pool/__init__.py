"""Pools: the replicas that are wanted, kept alive under the limits that are wanted.

    pool --> contents (what replicas hold) --> member (one of them) --> home (where they live)

Each knows those to its right alone.
"""

from serving.pool.contents import Contents
from serving.pool.home import Home, Replica
from serving.pool.member import Death, Member
from serving.pool.pool import Pool

__all__ = ["Contents", "Death", "Home", "Member", "Pool", "Replica"]
