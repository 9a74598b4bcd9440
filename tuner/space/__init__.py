"""Search space: knobs, constraints, equivalence rules, and files."""
