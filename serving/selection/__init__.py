"""Selection: which models of an application are queried, and how their outputs are combined.

Policies are pure functions over a state value. `answering.Pending` runs one query,
`contexts.Contexts` holds what was learned, and only state stores do I/O.
"""
