"""GPU of this machine: its clock, visibility to replicas, sharing, power and energy."""
