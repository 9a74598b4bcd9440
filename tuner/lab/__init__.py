"""Sampler benchmarks, noise measurements and examples for developers of the tuner."""
