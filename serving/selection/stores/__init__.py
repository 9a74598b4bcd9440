"""Stores of the states of selection policies: SQLite, Redis, and what makes them quick and safe."""
