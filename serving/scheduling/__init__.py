"""Schedulers: `adaptive` for one model's replicas, `clockwork` for replicas shared by many."""
