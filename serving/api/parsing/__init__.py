"""Bounded parsing of what clients send."""
