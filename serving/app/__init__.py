"""The server as a process: its command line, its start and end, and what it saves for the next start."""
