r"""Between a scheduler and its replicas: actions out, answers in, each request completed exactly once.

    dispatcher --> job (a request, and who waits), refusals (what it is told)
        |  \--> actions (as messages), loads (what a replica is told of a model, and tells)
        \--> worker --> connection (a replica's socket)          ended (what is told to who counts)

Each knows those that it points to.
"""

from serving.dispatch.connection import Connection
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.ended import ActionEnded, BatchDone
from serving.dispatch.job import Job, Request
from serving.dispatch.loads import Loaded, Wanted, told_inputs

__all__ = [
    "ActionEnded",
    "BatchDone",
    "Connection",
    "Dispatcher",
    "Job",
    "Loaded",
    "Request",
    "Wanted",
    "told_inputs",
]
