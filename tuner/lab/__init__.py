"""Sampler benchmarks, noise measurements and samples, for people who work on the tuner."""
