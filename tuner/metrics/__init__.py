"""Metrics of an evaluation: objectives, constraints, tail latency, prices."""
