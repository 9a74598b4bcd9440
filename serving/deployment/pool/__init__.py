"""Pools, which keep the wanted replicas alive under the wanted limits.

    pool --> contents (what replicas hold) --> member (one replica) --> spawner

Each module uses only those to its right.
"""

from serving.deployment.pool.contents import ReplicaContents
from serving.deployment.pool.member import Member
from serving.deployment.pool.pool import Pool
from serving.deployment.pool.spawner import Spawner

__all__ = ["Member", "Pool", "ReplicaContents", "Spawner"]
