"""Selection: which of an application's models are asked, and what becomes of what they say.

Policies are pure functions over a state value (`policy.py`, one file each, `registry.py`); the
hub drives `answering.Pending` for one query and `contexts.Contexts` for what users taught. Only
the state stores wait, write and read.
"""
