"""Clocks of the GPU are read, or the reason is told why there are none."""

from __future__ import annotations

from serving.accelerator import clocks


def test_clocks_or_a_reason() -> None:
    """Ascending clocks in MHz where a GPU tells them, else one line that a report can show."""
    found = clocks.supported_clocks_mhz()
    if isinstance(found, str):
        assert found
        assert "\n" not in found
    else:
        assert list(found) == sorted(set(found))
        assert found[0] > 0
