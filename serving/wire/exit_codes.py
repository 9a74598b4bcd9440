"""Exit codes by which a replica process reports why it did not start, or has ended itself."""

NO_GATEWAY = 69
"""The replica could not connect to the gateway (EX_UNAVAILABLE)."""
GPU_BROKEN = 70
"""An error left the GPU unusable for the replica (EX_SOFTWARE)."""
NOT_LIMITED = 71
"""The replica could not join its control groups (EX_OSERR)."""
NOT_MADE = 72
"""The kernel refused to create the process (EX_OSFILE)."""
NO_PROGRAM = 127  # as a shell reports it
