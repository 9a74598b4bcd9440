"""Linux control groups, versions 1 and 2: limits for CPU and memory, and their usage."""
