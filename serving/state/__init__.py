"""Saved run-time changes, in a folder that belongs to one server at a time."""
