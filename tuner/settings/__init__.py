"""Study settings by group; every field is an option of `tune` and a key of `settings.yaml`.

Durations are in seconds, latencies in milliseconds. `tuner.cli.main` builds its parser from here, and
the help documents each field.
"""
