"""Ways to deploy a model that is not a file yet, one module each, under the names of Clipper's API."""

from serving.clipper_admin.deployers import python

__all__ = ["python"]
