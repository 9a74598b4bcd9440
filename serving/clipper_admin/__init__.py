"""Clipper's Python API for Luthier: `ClipperConnection(ProcessContainerManager())`."""

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
