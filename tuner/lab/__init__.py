"""Benchmarks of samplers, measurements of the machine's noise, and samples: for those who work on the tuner."""
