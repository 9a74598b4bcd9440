"""Deployers of models that are not files yet, a module each, as in Clipper's API."""

from serving.clipper_admin.deployers import python

__all__ = ["python"]
