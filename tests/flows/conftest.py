"""Flows run beside one another: what they take of the machine is no reason to measure again."""

import pytest

from tests.fakes.forked_commands import forking
from tuner.measurement.interference import InterferenceDetector


@pytest.fixture(scope="module", autouse=True)
def _measured_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterferenceDetector, "can_repeat", lambda *_: False)
        yield


@pytest.fixture(scope="session")
def serve(_user_folders):
    """`python -m serving --port 0 --admin-port 0 ...` to its end, which it finds by itself."""
    with forking("serving.__main__", "serving.app.command") as run:
        yield lambda *words, **more: run("--port", "0", "--admin-port", "0", *words, **more)
