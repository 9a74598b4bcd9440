"""Connection handling beneath the protocols."""
