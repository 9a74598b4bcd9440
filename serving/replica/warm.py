"""Preload of a model kind: imports its runtime and freezes its objects."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading

from serving import models

log = logging.getLogger(__name__)


def import_runtime(kind: str) -> bool:
    """Import the runtime of a kind; return whether the process can be forked afterwards."""
    try:
        importlib.import_module(models.KINDS[kind])
    except (KeyError, ModuleNotFoundError):  # reported by LOAD
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
