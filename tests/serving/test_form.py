"""The request path runs in the form that was asked for: a compiled one that is not loaded tests nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import serving
from serving.deployment.dispatch import dispatcher


def test_the_form_that_runs_is_the_one_that_was_asked_for():
    """`make test-compiled` sets LUTHIER_FORM; everything else runs pure Python."""
    wanted = os.environ.get("LUTHIER_FORM", "python")
    assert serving.form() == wanted
    assert dispatcher.__file__.endswith(".py") == (wanted == "python")


def test_the_command_tells_its_form():
    """`--version` names it."""
    done = subprocess.run(
        [sys.executable, "-m", "serving", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(f"({serving.form()})\n")
