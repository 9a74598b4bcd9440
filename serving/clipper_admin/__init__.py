"""Clipper's Python API for this server: `ClipperConnection(ProcessContainerManager())`.

A client: it talks to a running server by HTTP alone, and imports nothing of the request path but
the names of input types.
"""

from serving.clipper_admin import deployers
from serving.clipper_admin.connection import ClipperConnection
from serving.clipper_admin.exceptions import ClipperException, UnconnectedException
from serving.clipper_admin.process_manager import ProcessContainerManager

__all__ = [
    "ClipperConnection",
    "ClipperException",
    "ProcessContainerManager",
    "UnconnectedException",
    "deployers",
]
