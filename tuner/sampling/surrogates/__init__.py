"""Models of evaluations, and what one more would teach."""
