"""A serving core for machine-learning models: adaptive batching, replicas with limits, live settings.

Start one with `python -m serving --model resnet`; the hub is `serving.engine.Engine`.
"""

import importlib.machinery
import importlib.util

__version__ = "0.1.0"


def form() -> str:
    """Which form of the request path runs: `python`, or `compiled` (docs/decisions/0007-compiled-form.md)."""
    found = importlib.util.find_spec("serving.profiles")
    loader = None if found is None else found.loader
    is_compiled = isinstance(loader, importlib.machinery.ExtensionFileLoader)
    return "compiled" if is_compiled else "python"
