"""The sub-commands of `tune`, one file each: its options, and what it does with them.

A command offers

    add_arguments(parser)              its options
    run(arguments, terminal) -> Said   what it did, for people and as one JSON object

and raises `TunerError` for everything that a user can cause. The registry is in `tuner.cli`.
"""
