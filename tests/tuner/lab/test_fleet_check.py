"""Check of several machines, without any: what tells them, and this machine, apart."""

from __future__ import annotations

from tuner.lab import fleet_check

HOST = {"host": {"cores": 4}, "files": {}}
SERVED = {"limits": "enforced", **HOST}


def test_this_machine_is_compared_too() -> None:
    """Not in what only an engine tells, as none ran here."""
    told = {"a": SERVED, "b": SERVED}
    assert fleet_check._difference(told, HOST) is None
    found = fleet_check._difference(told, {**HOST, "host": {"cores": 8}})
    assert found is not None
    assert "the machines this machine and a differ in host cores (8 and 4)" in found
    found = fleet_check._difference({**told, "b": {**SERVED, "limits": "none"}}, HOST)
    assert found is not None
    assert "the machines a and b differ in limits" in found
