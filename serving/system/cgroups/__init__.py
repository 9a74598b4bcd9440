"""Linux control groups, versions 1 and 2: limits of CPU and memory, and how much is used."""
