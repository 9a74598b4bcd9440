"""The clockwork scheduler: one controller plans every load and every batch of a pool, and admits what fits."""
