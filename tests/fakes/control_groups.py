"""Control groups of this machine by their names, while others make and remove theirs."""

import fnmatch
import os
import pathlib


def named(pattern):
    """Those whose name matches, wherever they are; one that goes meanwhile is no error, as it is to `glob`."""
    return [
        pathlib.Path(parent, name)
        for parent, names, _ in os.walk("/sys/fs/cgroup")
        for name in fnmatch.filter(names, pattern)
    ]
