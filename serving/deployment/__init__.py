"""Deployments, each of which serves one model version on replicas."""
