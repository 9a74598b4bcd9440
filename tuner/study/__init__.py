"""Study, from the default configuration to the verdict."""
