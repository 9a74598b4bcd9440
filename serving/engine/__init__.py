"""Deployment for a model name: versions, repository, applications, live changes."""
