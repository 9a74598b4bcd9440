"""Baseline samplers, and adapters for other libraries."""
