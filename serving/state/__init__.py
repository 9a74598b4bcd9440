"""Run-time changes, saved in a folder that one server owns."""
