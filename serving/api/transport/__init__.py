"""Connections and bytes below the protocols."""
