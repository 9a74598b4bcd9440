"""One study, from the default configuration to the verdict."""
