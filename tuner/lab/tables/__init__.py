"""Benchmark tables: grids of configurations recorded on a real engine, searched without it."""
