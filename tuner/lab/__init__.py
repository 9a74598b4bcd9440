"""Sampler benchmarks, noise measurements and samples, for developers of the tuner."""
