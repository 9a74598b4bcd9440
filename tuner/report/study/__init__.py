"""Facts, result and notes of one study."""
