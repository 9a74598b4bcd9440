"""Replicas as containers, through Docker's API."""
