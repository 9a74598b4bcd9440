"""Wire protocols: codecs and the listeners around them."""
