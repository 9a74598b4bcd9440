"""Clockwork: one controller plans all model loads and batches of a pool."""
