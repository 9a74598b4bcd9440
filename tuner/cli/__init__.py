"""The `tune` command."""
