"""Benchmarks of samplers, noise measurements and samples: for those who work on the tuner."""
