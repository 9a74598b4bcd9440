"""Measurement: metrics with intervals, and verdicts, from records of a load."""
