"""`python -m tests.fakes.measured_once`: `tune`, which does not measure again what others on the machine disturb."""

import sys

from tuner.cli import main
from tuner.measurement.interference import InterferenceDetector

if __name__ == "__main__":
    InterferenceDetector.can_repeat = lambda *_: False
    sys.exit(main.main(sys.argv[1:]))
