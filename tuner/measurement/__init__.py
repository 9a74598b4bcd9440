"""Measurement: from the records of a load phase to values with intervals, and to verdicts."""
