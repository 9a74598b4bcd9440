"""Engines other than Luthier's: their descriptions and files."""
