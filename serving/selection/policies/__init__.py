"""Selection policies, one per file, and their common code."""
