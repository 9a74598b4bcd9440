"""The sub-commands of `tune`, one module each.

A command offers

    add_arguments(parser)              its options
    run(arguments, terminal) -> Said   its result as text and as a JSON object

and raises `TunerError` for user errors. The registry is in `tuner.cli.main`.
"""
