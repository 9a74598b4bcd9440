"""The server process: command line, start and stop, and state saved for the next start."""
