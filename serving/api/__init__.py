"""Wire protocols: codecs and listeners."""
