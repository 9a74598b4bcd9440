"""Adaptive batching: each model has a queue, and a batch forms when a worker has room."""
