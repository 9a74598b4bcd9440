"""Configurations become settings of the engine, whole."""

from __future__ import annotations

import pytest

from serving.settings import SETTINGS, ServingSettings
from tuner.errors import UsageError
from tuner.launching import apply
from tuner.values.configuration import Configuration


def test_a_knob_is_a_setting_of_the_same_name() -> None:
    """Values go through by name, those of the GPU too."""
    given = Configuration({"batching.max_size": 4, "accelerator.clock_mhz": 900})
    assert apply.to_settings(given) == {"batching.max_size": 4, "accelerator.clock_mhz": 900}


def test_complete_settings_leave_nothing_of_what_ran_before() -> None:
    """Every live setting is given, at its default where the configuration is silent."""
    complete = apply.complete_settings(Configuration({"replica.cpu": 0.5}))
    assert set(complete) == {name for name, knob in SETTINGS.items() if knob.live}
    changed = ServingSettings().with_changes(complete)
    assert changed == ServingSettings().with_changes({"replica.cpu": 0.5})


def test_an_unknown_knob_is_refused() -> None:
    """A name that the engine does not know is an error."""
    with pytest.raises(UsageError, match=r"replica\.colour"):
        apply.to_settings(Configuration({"replica.colour": "red"}))
