"""Stores for the states of selection policies."""
