"""Start of the engine under test, and ways to give it a configuration."""
