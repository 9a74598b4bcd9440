"""Response cache, and single flight for equal requests."""
