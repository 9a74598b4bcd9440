"""Stores of the states of selection policies."""
