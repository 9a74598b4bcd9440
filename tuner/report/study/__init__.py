"""What a report says of one study: facts, result and notes."""
