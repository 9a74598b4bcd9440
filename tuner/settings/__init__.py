"""Study settings by group; every field is an option of `tune` and a key of `settings.yaml`.

The help documents each field.
"""
