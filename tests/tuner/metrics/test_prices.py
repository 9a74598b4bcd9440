"""What a configuration holds of the machine for its answers, and what that costs."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import studies
from tuner.errors import UsageError
from tuner.metrics import prices
from tuner.metrics.server_resources import needed_by
from tuner.values.configuration import Configuration
from tuner.values.measurement import HostNoise, Measurement

FILE = """
core_hour: 0.04
gib_hour: 0.005
gpu_hour: 2.5
currency: EUR
"""
AMOUNT = st.floats(0, 1e6)


def launch(**changes: object) -> Measurement:
    """2,000 answers in 2 s."""
    plain = studies.measurement(20.0, np.random.default_rng(0))
    noise = HostNoise(server_cpu_s=1.0, peak_memory_mb=100.0)
    return dataclasses.replace(plain, requests=2_000, seconds=2.0, noise=noise, **changes)


def test_what_is_reserved_is_paid_for_while_it_idles() -> None:
    """Two replicas of 0.5 cores and 256 MiB, for 1 s of 1,000 answers."""
    held = prices.allocated_by(
        Configuration({"replica.count": 2, "replica.cpu": 0.5, "replica.memory_mb": 256}), cores=4
    )
    cost = prices.cost_of(launch(), held, loaded_s=2.5, prices=prices.DEFAULT)
    assert cost is not None
    assert cost.cpu_s == pytest.approx(1.0)
    assert cost.memory_mib_s == pytest.approx(512.0)
    assert cost.price == pytest.approx(1.0 + 0.5 / 8), "core-seconds, a GiB-second as an eighth"


def test_a_server_that_is_limited_as_a_whole_is_held_as_a_whole() -> None:
    """The gateway's share of a pod is paid for like that of its replicas."""
    configuration = Configuration({"replica.cpu": 0.5, "replica.memory_mb": 256})
    whole = needed_by(configuration, "onnx", cores=4)
    held = prices.allocated_by(configuration, cores=4, whole=whole)
    assert (held.cores, held.memory_mib) == (1.5, 256 + 256 + 64)
    unlimited = Configuration({"replica.count": 2})
    found = needed_by(unlimited, "onnx", cores=4)
    assert prices.allocated_by(unlimited, cores=4, whole=found).memory_mib == 0.0


def test_without_a_limit_what_was_used_counts() -> None:
    """1 core-s in 2.5 s of load is 0.4 cores; two replicas of 100 MiB."""
    held = prices.allocated_by(Configuration({"replica.count": 2}), cores=4)
    cost = prices.cost_of(launch(), held, loaded_s=2.5, prices=prices.DEFAULT)
    assert cost is not None
    assert cost.cpu_s == pytest.approx(0.4)
    assert cost.memory_mib_s == pytest.approx(200.0)


def test_where_nothing_is_known_there_is_no_cost() -> None:
    """No limit, and a server whose CPU time cannot be read."""
    held = prices.allocated_by(Configuration({}), cores=4)
    unknown = dataclasses.replace(launch(), noise=HostNoise())
    assert prices.cost_of(unknown, held, loaded_s=2.5, prices=prices.DEFAULT) is None


def test_no_more_than_the_machine_is_held() -> None:
    """Eight cores reserved on a machine of four are four; of another engine its own limits count."""
    many = Configuration({"replica.count": 8, "replica.cpu": 1.0})
    assert prices.allocated_by(many, cores=4).cores == 4
    other = Configuration({"engine.cpu": 1.5, "engine.memory_mb": 300})
    assert prices.allocated_by(other, cores=4) == prices.AllocatedResources(
        cores=1.5, memory_mib=300, replicas=1, gpus=0.0
    )
    shared = Configuration({"replica.count": 3, "accelerator.share": 0.25})
    assert prices.allocated_by(shared, cores=4, has_gpu=True).gpus == 0.75


def test_a_price_file_is_read(tmp_path: pathlib.Path) -> None:
    """An hour of each."""
    path = tmp_path / "prices.yaml"
    path.write_text(FILE, encoding="utf-8")
    found = prices.read(str(path))
    assert found.of(cpu_s=3600, memory_mib_s=0, gpu_s=0) == pytest.approx(0.04)
    assert found.of(cpu_s=0, memory_mib_s=1024 * 3600, gpu_s=0) == pytest.approx(0.005)
    assert found.of(cpu_s=0, memory_mib_s=0, gpu_s=3600) == pytest.approx(2.5)
    assert found.in_words == (
        "cost is the price of 1,000 requests: an hour of a core costs 0.04 EUR, of a GiB 0.005 EUR, "
        "of a GPU 2.5 EUR (--prices)"
    )
    assert prices.read(None) is prices.DEFAULT


@given(cpu_s=AMOUNT, memory_mib_s=AMOUNT, gpu_s=AMOUNT, more=AMOUNT)
def test_more_never_costs_less(
    cpu_s: float, memory_mib_s: float, gpu_s: float, more: float
) -> None:
    """And nothing costs nothing."""
    found = prices.parse(FILE, file="prices.yaml")
    before = found.of(cpu_s=cpu_s, memory_mib_s=memory_mib_s, gpu_s=gpu_s)
    assert before >= 0
    assert found.of(cpu_s=cpu_s + more, memory_mib_s=memory_mib_s, gpu_s=gpu_s) >= before
    assert found.of(cpu_s=cpu_s, memory_mib_s=memory_mib_s + more, gpu_s=gpu_s) >= before
    assert found.of(cpu_s=0, memory_mib_s=0, gpu_s=0) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("core_hour: 0.04", "price file p.yaml, gib_hour: missing; expected the price of an hour"),
        ("cpu_hour: 1", "cpu_hour: unknown key 'cpu_hour', did you mean"),
        ("core_hour: cheap\ngib_hour: 1", "core_hour: 'cheap', expected a number (line 1)"),
        ("core_hour: -1\ngib_hour: 1", "core_hour: -1, expected a price from 0 (line 1)"),
        ("core_hour: 0\ngib_hour: 0", "so everything would be free"),
        ("- 1", "expected a mapping of keys"),
        ("core_hour: [", "not YAML"),
        ("", "nothing, expected a mapping"),
    ],
)
def test_what_is_wrong_with_a_price_file_is_one_line(text: str, complaint: str) -> None:
    """The file, the key, what was given and what is expected."""
    with pytest.raises(UsageError) as caught:
        prices.parse(text, file="p.yaml")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_names_the_option() -> None:
    """And what it should be."""
    with pytest.raises(
        UsageError, match=r"--prices nowhere.yaml: No such file.*YAML file of prices"
    ):
        prices.read("nowhere.yaml")
