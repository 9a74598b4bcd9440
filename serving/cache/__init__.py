"""Prediction cache: what was answered before, and what is being answered now."""
