"""Bounded reading of what clients send."""
