"""Spawners, which start, limit and stop replicas as processes or as Docker containers."""
