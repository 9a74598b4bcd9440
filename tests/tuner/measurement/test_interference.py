"""Which loads others of the machine have disturbed, and how many of them are measured again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement.interference import CREDIT_S, MAX_REPEATED, InterferenceDetector
from tuner.values.measurement import HostNoise

LOADED_S = 1.0


def loads(*shares, cores=2):
    """Whether each load counts as disturbed, by what other processes took of the whole machine."""
    others = InterferenceDetector(cores)
    return [
        others.is_disturbed(HostNoise(neighbour_cpu_s=share * cores * LOADED_S), loaded_s=LOADED_S)
        for share in shares
    ]


def test_a_burst_is_seen_and_a_quiet_machine_is_not():
    """Other processes that take half of the machine in one load of many."""
    assert loads(*[0.01] * 10, 0.5, 0.02) == [*[False] * 10, True, False]
    assert loads(0.01, 0.3) == [False, True]


def test_a_steady_neighbour_is_part_of_the_machine():
    """Only what is more than usual disturbs."""
    assert loads(*[0.2] * 12, 0.4, 0.2) == [*[False] * 12, True, False]


def test_stolen_time_counts_as_well():
    """What the hypervisor gives to other machines, and what other processes take, together."""
    for cores, is_disturbed in ((2, True), (4, False)):
        others = InterferenceDetector(cores)
        others.is_disturbed(HostNoise(neighbour_cpu_s=0.0, steal_s=0.0), loaded_s=LOADED_S)
        noise = HostNoise(neighbour_cpu_s=0.06, steal_s=0.06)
        assert others.is_disturbed(noise, loaded_s=LOADED_S) is is_disturbed


@pytest.mark.parametrize(
    "noise",
    [HostNoise(), HostNoise(neighbour_cpu_s=0.04), HostNoise(neighbour_cpu_s=None, steal_s=0.0)],
)
def test_what_is_not_known_or_not_told_from_none_disturbs_nothing(noise):
    """A system without procfs; a few ticks."""
    others = InterferenceDetector(1)
    others.is_disturbed(HostNoise(neighbour_cpu_s=0.0), loaded_s=0.4)
    assert not others.is_disturbed(noise, loaded_s=0.4)


@given(st.lists(st.floats(0.05, 5.0), min_size=1, max_size=60))
def test_measuring_again_takes_a_share_of_the_time_at_most(lengths):
    """Whatever is disturbed: a machine that is never quiet is measured as it is."""
    others, repeated_s = InterferenceDetector(2), 0.0
    for number, loaded_s in enumerate(lengths):
        others.is_disturbed(HostNoise(neighbour_cpu_s=number % 2 * loaded_s), loaded_s=loaded_s)
        repeated_s += loaded_s * others.can_repeat(loaded_s)
    assert repeated_s <= CREDIT_S + MAX_REPEATED * sum(lengths) + 1e-9
