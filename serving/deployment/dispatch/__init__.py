r"""Dispatch between a scheduler and replicas: actions out, responses in, each request ends once.

    dispatcher --> job (an in-flight request), refusals (rejection errors)
        |  \--> actions (messages), loads (model loads and their reports)
        \--> worker --> connection (a replica's socket)          ended (events for counters)

Each module knows only those that it points to.
"""

from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.events import ActionEnded, BatchDone
from serving.deployment.dispatch.inflight import RequestFrame
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec, declared_inputs

__all__ = [
    "ActionEnded",
    "BatchDone",
    "Dispatcher",
    "LoadReport",
    "LoadSpec",
    "ReplicaConnection",
    "RequestFrame",
    "declared_inputs",
]
