r"""Dispatch between a scheduler and replicas: actions out, responses in, each request ends once.

    dispatcher --> request table --> in-flight requests
             \--> actions (messages), connections (replicas) --> model loads

Each module knows only those that it points to.
"""
