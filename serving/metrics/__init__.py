"""What the server counts, and how Prometheus reads it."""
