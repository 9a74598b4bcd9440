"""Engines other than Luthier: their descriptions and files."""
