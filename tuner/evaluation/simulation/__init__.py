"""Performance models: predict every configuration's mean latency from a short model profile."""
