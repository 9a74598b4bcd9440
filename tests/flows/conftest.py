"""Flows run beside one another: what they take of the machine is no reason to measure again."""

import pytest

from tuner.measurement.interference import InterferenceDetector


@pytest.fixture(autouse=True)
def _measured_once(monkeypatch):
    monkeypatch.setattr(InterferenceDetector, "can_repeat", lambda *_: False)
