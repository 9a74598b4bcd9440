"""Adaptive batching: each model has one queue, and a batch forms when a worker has room."""
