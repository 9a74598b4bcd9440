"""Triton's extensions to the Open Inference Protocol: repository, statistics, classification."""
