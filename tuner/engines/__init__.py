"""Other engines than Luthier's: their descriptions and files."""
