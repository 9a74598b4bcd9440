r"""Dispatch between a scheduler and its replicas, in which each request ends exactly once.

    dispatcher --> request table --> in-flight requests
             \--> actions (messages), connections (replicas) --> model loads

Each module depends only on those that it points to.
"""
