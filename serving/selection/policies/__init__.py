"""Selection policies, one file each, and what they share."""
