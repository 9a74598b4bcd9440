"""Values that the packages of the tuner exchange."""
