"""What reaches the scheduler of a running gateway."""

import contextlib

from serving.scheduling.seam import Submitted


class _Heard:
    """A scheduler that writes down what is submitted to it."""

    def __init__(self, scheduler, seen):
        self._scheduler = scheduler
        self._seen = seen

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    def on(self, event, now_s):
        if type(event) is Submitted:
            self._seen.append((event.priority, event.flow))
        self._scheduler.on(event, now_s)


@contextlib.contextmanager
def submissions(running, place=0):
    """Priority and flow of all that is submitted to a model meanwhile."""
    seen = []
    dispatcher = running.engine.served()[place].dispatcher
    scheduler = dispatcher._scheduler
    dispatcher._scheduler = _Heard(scheduler, seen)
    try:
        yield seen
    finally:
        dispatcher._scheduler = scheduler
