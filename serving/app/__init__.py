"""The server as a process: command line, start and end, and state saved for the next start."""
