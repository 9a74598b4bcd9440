"""Clipper's query and management protocols."""
