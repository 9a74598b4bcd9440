"""Adaptive batching: one queue per model; a batch forms when a worker has room."""
