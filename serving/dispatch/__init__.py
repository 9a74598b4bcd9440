r"""Dispatch between a scheduler and replicas: actions out, responses in, each request ends once.

    dispatcher --> job (an in-flight request), refusals (rejection errors)
        |  \--> actions (messages), loads (model loads and their reports)
        \--> worker --> connection (a replica's socket)          ended (events for counters)

Each module knows only those that it points to.
"""

from serving.dispatch.connection import Connection
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.ended import ActionEnded, BatchDone
from serving.dispatch.job import Request
from serving.dispatch.loads import Loaded, Wanted, told_inputs

__all__ = [
    "ActionEnded",
    "BatchDone",
    "Connection",
    "Dispatcher",
    "Loaded",
    "Request",
    "Wanted",
    "told_inputs",
]
