"""Evaluation of configurations, on an engine under load or by simulation."""
