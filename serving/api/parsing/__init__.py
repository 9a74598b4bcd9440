"""Bounded parsing of client input."""
