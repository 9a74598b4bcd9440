"""Selection policies, one per file, and code that they share."""
