"""Replicas: the processes that hold models, their messages and their limits.

`wire` defines the messages, `host` runs inside a replica, `template` forks replicas, `as_process`
spawns them for the gateway, `limits` bounds CPU and memory.
"""
