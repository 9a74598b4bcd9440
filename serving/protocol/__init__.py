"""Wire protocols: codecs that turn bytes into queries and answers into bytes, and the listeners around them."""
