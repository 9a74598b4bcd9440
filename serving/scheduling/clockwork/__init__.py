"""Clockwork: one controller plans all loads and batches of a pool."""
