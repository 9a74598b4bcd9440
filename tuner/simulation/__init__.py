"""The engine predicted: from a short profile of a model to the mean round trip of every configuration."""
