"""What reaches the scheduler of a running gateway."""

import contextlib

from serving.scheduling.interface import Submitted


class _Heard:
    """A scheduler that tells what is submitted to it."""

    def __init__(self, scheduler, hear):
        self._scheduler = scheduler
        self._hear = hear

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    def on(self, event, now_s):
        if isinstance(event, Submitted):
            self._hear(event)
        self._scheduler.on(event, now_s)


@contextlib.contextmanager
def heard(running, hear, place=0):
    """Calls `hear` with all that is submitted to a model meanwhile."""
    dispatcher = running.engine.deployments()[place].dispatcher
    scheduler = dispatcher._scheduler
    dispatcher._scheduler = _Heard(scheduler, hear)
    try:
        yield
    finally:
        dispatcher._scheduler = scheduler


@contextlib.contextmanager
def submissions(running, place=0):
    """Priority and flow of all that is submitted to a model meanwhile."""
    seen = []
    with heard(running, lambda event: seen.append((event.priority, event.flow)), place):
        yield seen
