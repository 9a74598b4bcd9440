"""Selection of the models that an application queries, and combination of their outputs.

Policies are pure functions over a state value; only state stores do I/O.
"""
