"""Replicas as processes, forked from a fork server."""
