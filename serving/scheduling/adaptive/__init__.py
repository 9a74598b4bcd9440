"""The adaptive scheduler: one queue per model, batches formed when a worker has room."""
