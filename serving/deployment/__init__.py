"""One version of a model in service: its replicas, their profile, its settings."""
