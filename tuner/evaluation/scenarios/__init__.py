"""Scenarios: many models on a few workers, emulated or served."""
