"""Clockwork: a single controller plans all model loads and batches of a pool."""
