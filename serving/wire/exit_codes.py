"""Exit codes by which the process of a replica reports why it did not start."""

NO_GATEWAY = 69
"""No connection to the gateway (EX_UNAVAILABLE)."""
NOT_MADE = 72
"""The kernel refused the process to the fork server (EX_OSFILE)."""
NOT_LIMITED = 71
"""Control groups not joined (EX_OSERR)."""
NO_PROGRAM = 127  # as a shell reports it
