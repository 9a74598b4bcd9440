"""Page of a table benchmark: samplers compared on recorded tables."""
