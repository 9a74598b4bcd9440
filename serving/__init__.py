"""A serving core for machine-learning models: adaptive batching, replicas with limits, live settings.

Start one with `python -m serving --model resnet`; the hub is `serving.engine.Engine`.
"""

__version__ = "0.1.0"
