"""Evaluation of configurations: an engine is launched and loaded, or its behaviour is computed."""
