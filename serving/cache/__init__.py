"""The response cache, and single flight for equal requests."""
