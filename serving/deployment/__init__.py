"""Deployments, each of which serves one version of a model on replicas under its settings."""
