"""Exit codes by which a replica process reports why it did not start."""

NO_GATEWAY = 69
"""The replica could not connect to the gateway (EX_UNAVAILABLE)."""
NOT_MADE = 72
"""The kernel refused to create the process (EX_OSFILE)."""
NOT_LIMITED = 71
"""The replica could not join its control groups (EX_OSERR)."""
NO_PROGRAM = 127  # as a shell reports it
