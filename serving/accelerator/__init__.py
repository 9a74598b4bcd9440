"""The GPU of this machine: its clock, what replicas see of it, how they share it, its power and energy."""
