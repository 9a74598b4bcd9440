"""Triton's extensions of the Open Inference Protocol: repository, statistics, classification."""
