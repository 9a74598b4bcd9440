r"""Dispatch between a scheduler and replicas: actions out, responses in, each request ends once.

    dispatcher --> job (an in-flight request), refusals (rejection errors)
        |  \--> actions (messages), loads (model loads and their reports)
        \--> worker --> connection (a replica's socket)          ended (events for counters)

Each module knows only those that it points to.
"""

from serving.deployment.dispatch.connection import Connection
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.events import ActionEnded, BatchDone
from serving.deployment.dispatch.inflight import Request
from serving.deployment.dispatch.model_load import Loaded, Wanted, told_inputs

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
