"""Search space: knobs, constraints, equivalence, and their files."""
