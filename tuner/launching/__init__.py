"""Start of the engine under test, and how it gets a configuration."""
