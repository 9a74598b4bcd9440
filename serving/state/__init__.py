"""Changes made at run time, saved in a folder that one server owns."""
