"""Models of evaluations, and what one more evaluation would teach."""
