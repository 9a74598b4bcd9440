"""Connections and bytes below the protocols: limits on clients, slow clients, compression."""
