"""Search space: knobs, constraints, equivalence, and their files.

`derive` proposes a space for a model without a file; `distributions` translates knobs for Optuna.
Pure, except for reading files.
"""
