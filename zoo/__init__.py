"""Trains the bundled models, which are in `serving/zoo/`: README.md says how. No part of the wheel."""
