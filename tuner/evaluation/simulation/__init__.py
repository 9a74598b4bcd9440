"""Performance models, which predict every configuration's mean latency from a short profile."""
