"""Replicas: `main_loop` runs inside each, and `forkserver` forks them from a warm process."""
