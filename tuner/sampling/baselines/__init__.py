"""Samplers to compare with, and adapters for other libraries."""
