"""Samplers to compare with, and the adapters of other libraries."""
