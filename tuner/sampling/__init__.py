"""Samplers for any Optuna study; `registry.create` makes one by name."""
