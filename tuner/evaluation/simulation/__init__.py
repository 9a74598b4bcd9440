"""Performance models: the closed form of predictions, and an emulated pool of many models."""
