"""Saved run-time changes, in a folder that one server owns."""
