"""An autotuner around a model server: launch, load, measure, search, report, export.

The command is `tune`; the hub is `tuner.study`.
"""
