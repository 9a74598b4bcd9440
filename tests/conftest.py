"""For all tests."""

try:
    import hypothesis
except ImportError:  # tests/frameworks run in an environment of their own, without it
    pass
else:
    # On a shared machine an example may take any time: what bounds a test is pytest's timeout.
    hypothesis.settings.register_profile("shared machine", deadline=None)
    hypothesis.settings.load_profile("shared machine")
