"""Schedulers: `adaptive` for one model's replicas, `clockwork` for replicas that models share."""
