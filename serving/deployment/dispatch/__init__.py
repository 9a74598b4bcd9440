r"""Dispatch between a scheduler and replicas: actions out, responses in, each request ends once.

    dispatcher --> request table --> in-flight requests, rejection errors
             \--> actions (messages), connections (replicas) --> model loads

Each module knows only those that it points to.
"""

from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.inflight import RequestFrame
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec, declared_inputs
from serving.deployment.dispatch.request_table import BatchDone

__all__ = [
    "BatchDone",
    "Dispatcher",
    "LoadReport",
    "LoadSpec",
    "ReplicaConnection",
    "RequestFrame",
    "declared_inputs",
]
