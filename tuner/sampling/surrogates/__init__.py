"""Models of evaluations, and of what one more evaluation would teach."""
