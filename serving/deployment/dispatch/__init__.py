r"""Dispatch from a scheduler to its replicas, in which each request ends exactly once.

    dispatcher --> request table --> in-flight requests
             \--> actions (messages), connections (replicas) --> model loads

Arrows point to the modules that a module uses.
"""
