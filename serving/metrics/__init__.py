"""The server's metrics and their Prometheus exposition."""
