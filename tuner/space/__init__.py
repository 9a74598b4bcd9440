"""The space that is searched: knobs, constraints, equivalence, and the files that hold them.

`files` reads and writes search-space files, `space` is the value the rest of the tuner works with,
`derive` proposes a space for a model without a file, `distributions` gives the knobs to Optuna.
Pure but for the reading of files.
"""
