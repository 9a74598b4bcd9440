"""The admin port: settings, models, replicas, health and metrics."""
