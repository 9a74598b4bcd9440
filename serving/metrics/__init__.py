"""Server metrics and their Prometheus exposition."""
