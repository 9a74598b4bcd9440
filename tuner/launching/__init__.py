"""Start and configuration of the engine under test."""
