"""What was changed while a server ran, kept in a folder that belongs to one server at a time."""
