"""Reasons to doubt a measurement."""

import pytest

from tuner.measurement.measurement_warnings import warnings_of
from tuner.values.measurement import HostNoise


def test_a_sound_measurement_has_none(measured):
    """Enough requests, Little's law, an idle client, no steal; unknown noise is no reason."""
    assert warnings_of(measured(), cores=2) == ()
    noise = HostNoise(client_cpu_s=1.5, steal_s=0.09)
    assert warnings_of(measured(noise=noise), cores=2) == ()
    assert warnings_of(measured(little_error=None), cores=2) == (), "an open loop"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"little_error": 0.06}, "by 6 % (Little's law)"),
        ({"late_share": 0.02}, "2 % of the requests were sent more than 1 ms after they were due"),
        (
            {"noise": HostNoise(client_cpu_s=1.7)},
            "used 85 % of a core, so it may have limited the result; --load-clients 2",
        ),
        ({"noise": HostNoise(steal_s=0.15)}, "gave 3.0 % of the machine's"),
    ],
)
def test_each_reason_is_one_sentence_with_its_figure(measured, changes, text):
    """Of 2 s on 2 cores, after a warm-up of 0.5 s in which time may be stolen as well."""
    (sentence,) = warnings_of(measured(**changes), cores=2)
    assert text in sentence


def test_several_clients_have_a_core_each(measured):
    """What is too much for one is not for two."""
    assert warnings_of(measured(noise=HostNoise(client_cpu_s=1.7)), cores=2, load_clients=2) == ()
    (sentence,) = warnings_of(measured(noise=HostNoise(client_cpu_s=3.4)), cores=2, load_clients=2)
    assert "used 85 % of a core for each of its processes" in sentence
    assert "--load-clients 4" in sentence
