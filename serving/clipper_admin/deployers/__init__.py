"""Deployers for models that are not files yet."""

from serving.clipper_admin.deployers import python

__all__ = ["python"]
