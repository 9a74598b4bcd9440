"""Samplers for any Optuna study: what to try next. `registry.create` makes one by name."""
