"""Facts about one study, its result, and notes on it."""
