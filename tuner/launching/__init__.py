"""Where the engine under test runs, and how a configuration gets into it."""
