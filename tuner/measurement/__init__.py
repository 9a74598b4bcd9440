"""Measurement: metrics with intervals, and verdicts, from the records of a load."""
