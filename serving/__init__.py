"""A model-serving core: adaptive batching, replicas with resource limits, live settings.

Start it with `python -m serving --model resnet`. The central class is
`serving.engine.engine.Engine`.
"""

import importlib.machinery
import importlib.util

__version__ = "0.1.0"


def form() -> str:
    """Return which build runs, `python` or `compiled` (docs/decisions/0007-compiled-form.md)."""
    found = importlib.util.find_spec("serving.wire.batches")
    loader = None if found is None else found.loader
    is_compiled = isinstance(loader, importlib.machinery.ExtensionFileLoader)
    return "compiled" if is_compiled else "python"
