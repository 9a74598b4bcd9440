"""Selection: which models of an application are queried, and how their outputs are combined.

Policies are pure functions over a state value; only state stores do I/O.
"""
