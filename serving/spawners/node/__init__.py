r"""Replicas on other machines, behind one node agent each.

    gateway: spawner --> node (one agent) --> link (preface, TLS, frames)
    machine: agent --> spawners of processes or containers, relay, files --> link

Arrows point to the modules that a module uses. `seats` says on which machine a replica runs.
"""
