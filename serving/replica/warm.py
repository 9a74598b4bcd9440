"""Makes a process warm for a kind of model: its runtime is imported, and nothing of it is collected any more.

In: a kind. Out: whether the process can be forked afterwards. For the template, which forks replicas, and for
a container, which is one.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading

from serving import models

log = logging.getLogger(__name__)


def warm_up(kind: str) -> bool:
    """Import what replicas of a kind will need; whether this process can be forked afterwards."""
    try:
        importlib.import_module(models.KINDS[kind])
    except (KeyError, ModuleNotFoundError):  # the replica's LOAD says it to those who wait
        pass
    except ImportError as error:
        log.warning("a model runtime cannot be imported", extra={"error": str(error)})
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - also counts native threads
    except OSError:
        return sys.platform != "darwin" and threading.active_count() == 1
    return threads == 1
