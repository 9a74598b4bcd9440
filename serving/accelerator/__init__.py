"""GPU of this machine: clock, visibility to replicas, sharing, power and energy."""
