"""Facts of the replicas as the admin port tells them."""

from __future__ import annotations

import pytest

from tuner.launching import replica_facts


def replica(**values: object) -> dict[str, object]:
    known = {"peak_memory_mb": None, "cpu_s": None, "throttled_s": None}
    return {"worker": 0, "pid": 7, "state": "ready", "restarts": 0, **known, **values}


def test_largest_memory_and_sums_of_times() -> None:
    """Memory is the largest of any replica, times are sums, unknown ones are left out."""
    answer = {
        "replicas": [
            replica(peak_memory_mb=40.0, cpu_s=1.5, throttled_s=0.5),
            replica(peak_memory_mb=60.0, cpu_s=0.5),
        ],
        "deaths": [],
    }
    facts = replica_facts.parse(answer)
    assert (facts.peak_memory_mb, facts.cpu_s, facts.throttled_s) == (60.0, 2.0, 0.5)


def test_what_is_not_known_is_none() -> None:
    """Where the host tells nothing, nothing is made up."""
    facts = replica_facts.parse({"replicas": [replica()], "deaths": []})
    assert (facts.peak_memory_mb, facts.cpu_s, facts.throttled_s) == (None, None, None)


def test_the_newest_death_of_a_reason() -> None:
    """Of several deaths the newest of the asked reason is given."""
    deaths = [
        {"worker": 0, "reason": "oom", "text": "first", "at_s": 1.0},
        {"worker": 1, "reason": "crash", "text": "other", "at_s": 2.0},
        {"worker": 0, "reason": "oom", "text": "second", "at_s": 3.0},
    ]
    facts = replica_facts.parse({"replicas": [], "deaths": deaths})
    found = facts.died_of("oom")
    assert found is not None
    assert found.text == "second"
    assert facts.died_of("hang") is None


def test_a_replica_that_is_starting_has_no_process_yet() -> None:
    """After a death the next replica is listed before it has a process."""
    starting = replica(pid=None, state="starting")
    facts = replica_facts.parse({"replicas": [replica(), starting], "deaths": []})
    assert facts.pids == (7,)
    assert len(facts.replicas) == 2


def test_another_form_is_an_error() -> None:
    """An answer without the agreed keys is not read as if nothing had happened."""
    with pytest.raises(KeyError):
        replica_facts.parse({"replicas": []})
