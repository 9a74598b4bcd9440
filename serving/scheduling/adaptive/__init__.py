"""Adaptive batching: one queue per model, where a batch forms when a worker has room."""
