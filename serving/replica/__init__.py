"""Replicas: the processes that hold models, what is said to them, and what they may use.

`wire` is the language between gateway and replica (pure), `host` runs inside a replica, `template`
forks replicas, `as_process` is their home on the gateway's side, `limits` bounds CPU and memory.
"""
