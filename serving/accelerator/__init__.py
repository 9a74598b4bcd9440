"""GPU clocks, read only in this version."""
