"""For all tests."""

import hypothesis

# On a shared machine an example may take any time: what bounds a test is pytest's timeout.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")
