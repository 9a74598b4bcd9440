"""Replicas: `main_loop` runs inside one, and `forkserver` forks them from a warm process."""
