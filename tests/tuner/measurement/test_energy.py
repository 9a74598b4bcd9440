"""Energy of a load from counters that were read beside it."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time

import numpy as np
import pytest

from tests.fakes import gpu as fake
from tuner.measurement import meters
from tuner.measurement.energy import Trace, energy_of
from tuner.measurement.meters import EnergyMeter, PackageCounter
from tuner.values.interval import UNKNOWN
from tuner.values.measurement import Block

RATE = 100
"""Requests per second."""


def trace_of(watts: dict[str, float], *, seconds: float = 10.0, begin_s: float = 1000.0) -> Trace:
    """Constant power from each source, read 25 times a second."""
    at_s = begin_s + np.arange(0.0, seconds + 1e-9, 0.04)
    joules = {name: 7.0 + power * (at_s - begin_s) for name, power in watts.items()}
    return Trace(at_s=at_s, joules=joules, clock_mhz=np.full(len(at_s), 900.0))


def parts_of(start_s: float, seconds: float, *, block_s: float = 0.5) -> tuple[Block, ...]:
    count = round(seconds / block_s)
    return tuple(
        Block(start_s=start_s + n * block_s, seconds=block_s, requests=int(RATE * block_s),
              mean_ms=1.0, p50_ms=1.0, p99_ms=1.0, throughput_per_s=RATE)
        for n in range(count)
    )  # fmt: skip


MEASURED = {"origin_s": 1001.0, "start_s": 1.0, "seconds": 4.0, "requests": 4 * RATE}
PARTS = parts_of(1.0, 4.0)


def test_constant_power_over_the_rate_is_the_energy_of_a_request() -> None:
    """200 W at 100 requests per second are 2 J each, by source, with mean power and clock."""
    found = energy_of(trace_of({"gpu": 150.0, "cpu": 50.0}), PARTS, **MEASURED)
    assert found is not None
    assert found.per_request_j == pytest.approx(2.0)
    assert found.sources == {"gpu": pytest.approx(1.5), "cpu": pytest.approx(0.5)}
    assert found.power_w == pytest.approx(200.0)
    assert found.clock_mhz == pytest.approx(900.0)
    assert found.interval.low == pytest.approx(2.0)
    assert found.interval.high == pytest.approx(2.0)


def test_the_warm_up_and_what_comes_after_do_not_count() -> None:
    """A burst before the measured part changes nothing."""
    trace = trace_of({"gpu": 100.0})
    burst = np.where(trace.at_s > 1001.5, 5000.0, 0.0) + np.where(trace.at_s > 1008.0, 5000.0, 0.0)
    trace = dataclasses.replace(trace, joules={"gpu": trace.joules["gpu"] + burst})
    found = energy_of(trace, PARTS, **MEASURED)
    assert found is not None
    assert found.per_request_j == pytest.approx(1.0)


def test_uneven_power_widens_the_interval() -> None:
    """The interval is over blocks, and holds the value."""
    trace = trace_of({"gpu": 100.0})
    steps = np.cumsum(np.where(np.floor(trace.at_s) % 2, 2.0, 6.0))
    found = energy_of(dataclasses.replace(trace, joules={"gpu": steps}), PARTS, **MEASURED)
    assert found is not None
    assert found.interval.low < found.per_request_j < found.interval.high
    assert found.interval.high > 1.1 * found.per_request_j


@pytest.mark.parametrize(
    ("phrase", "trace", "given"),
    [
        ("readings end early", trace_of({"gpu": 100.0}, seconds=3.0), MEASURED),
        ("readings begin late", trace_of({"gpu": 100.0}, begin_s=1003.0), MEASURED),
        ("no readings", Trace(at_s=np.empty(0), joules={"gpu": np.empty(0)}), MEASURED),
        ("no sources", trace_of({}), MEASURED),
        ("a counter that stands still", trace_of({"gpu": 0.0}), MEASURED),
        ("no requests", trace_of({"gpu": 100.0}), {**MEASURED, "requests": 0}),
    ],
)
def test_what_was_not_read_on_both_sides_is_not_known(phrase, trace, given) -> None:
    """No figure rather than a wrong one."""
    assert energy_of(trace, PARTS, **given) is None


# Reading


def powercap(folder: pathlib.Path, *packages: int, most: int = 999_999_999) -> list[pathlib.Path]:
    """The kernel's files for so many packages, each with a part that must not be counted twice."""
    found = []
    for number, used in enumerate(packages):
        domain = folder / f"intel-rapl:{number}"
        for path, name in ((domain, f"package-{number}"), (folder / f"{domain.name}:0", "core")):
            path.mkdir()
            (path / "name").write_text(f"{name}\n")
            (path / "energy_uj").write_text(f"{used}\n")
            (path / "max_energy_range_uj").write_text(f"{most}\n")
        found.append(domain / "energy_uj")
    return found


def test_packages_are_added_up_and_counters_begin_anew(tmp_path) -> None:
    """One of two wraps around its range."""
    first, second = powercap(tmp_path, 900_000_000, 5_000_000)
    counter = PackageCounter((first.parent, second.parent))
    assert counter.joules() == 0
    first.write_text("1000000\n")
    second.write_text("6000000\n")
    assert counter.joules() == pytest.approx(101 + 1)


@pytest.fixture
def no_packages(tmp_path, monkeypatch):
    """A machine without RAPL, until files are put into the folder."""
    folder = tmp_path / "powercap"
    folder.mkdir()
    monkeypatch.setattr(meters, "POWERCAP", folder)
    return folder


def test_what_can_be_read_is_found(gpu, no_packages) -> None:
    """The GPU, the CPU, or both, in words; and why not."""
    with meters.open_counters() as found:
        assert [counter.text for counter in found.counters] == ["Fake GPU (its energy counter)"]
        assert found.lacking == (f"no energy counter of a CPU package in {no_packages}",)
    powercap(no_packages, 1, 2)
    with meters.open_counters(gpu=False) as found:
        assert [counter.text for counter in found.counters] == ["2 CPU packages (RAPL)"]
        assert found.lacking == ("the model runs on the CPU, so the GPU is not counted",)
    gpu.unplug()
    (no_packages / "intel-rapl:0" / "energy_uj").unlink()
    with meters.open_counters() as found:
        assert found.counters == ()
        assert "Driver Not Loaded" in found.lacking[0]
        assert "the CPU's energy counter cannot be read (No such file" in found.lacking[1]


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_meter_reads_the_gpu_while_a_load_runs(gpu, no_packages, is_counted) -> None:
    """Its own count, or its power over time where it keeps none: the same joules."""
    if not is_counted:
        gpu.refuse(nvmlDeviceGetTotalEnergyConsumption=fake.NOT_SUPPORTED)
    with meters.open_counters() as found:
        with EnergyMeter(found.counters, period_s=0.01) as meter:
            begin_s = time.monotonic()
            time.sleep(0.2)
            end_s = time.monotonic()
        trace = meter.trace()
    expected_j = fake.power_w(fake.FREE_MHZ) * (end_s - begin_s)
    assert trace.between("gpu", begin_s, end_s) == pytest.approx(expected_j, rel=0.05)
    assert set(trace.clock_mhz) == {fake.FREE_MHZ}
    assert len(trace.at_s) > 3
    assert all(a < b for a, b in itertools.pairwise(trace.at_s))
    assert ("energy counter" in found.counters[0].text) is is_counted


def test_a_gpu_that_falls_silent_is_not_asked_again(gpu, no_packages) -> None:
    """The reason is kept, and the trace ends there."""
    with meters.open_counters() as found, EnergyMeter(found.counters, period_s=0.01) as meter:
        gpu.refuse(nvmlDeviceGetTotalEnergyConsumption=fake.NO_PERMISSION)
        time.sleep(0.1)
    assert "does not report its energy: Insufficient Permissions" in meter.failure
    assert len(meter.trace().at_s) >= 1
    assert energy_of(meter.trace(), PARTS, **MEASURED) is None


def test_a_gpu_that_tells_no_clock_counts_energy_all_the_same(gpu, no_packages) -> None:
    """The clock is not known, and nothing else is lost."""
    with meters.open_counters() as found:
        gpu.refuse(nvmlDeviceGetClockInfo=fake.NOT_SUPPORTED)
        with EnergyMeter(found.counters, period_s=0.005) as meter:
            time.sleep(0.02)
    assert meter.failure == ""
    trace = dataclasses.replace(trace_of({"gpu": 100.0}), clock_mhz=meter.trace().clock_mhz)
    assert trace.clock_mhz is not None
    assert np.isnan(trace.clock_mhz).all()
    unknown = dataclasses.replace(trace_of({"gpu": 100.0}), clock_mhz=np.full(251, np.nan))
    told = energy_of(unknown, PARTS, **MEASURED)
    assert told is not None
    assert told.clock_mhz is None


def test_a_counter_that_moves_behind_the_last_block_has_no_interval() -> None:
    """The blocks took nothing, the whole did."""
    trace = trace_of({"gpu": 0.0})
    late = np.where(trace.at_s > 1001.0 + 1.0 + 3.7, 40.0, 0.0)
    found = energy_of(
        dataclasses.replace(trace, joules={"gpu": late}), parts_of(1.0, 3.5), **MEASURED
    )
    assert found is not None
    assert found.per_request_j == pytest.approx(0.1)
    assert found.interval == UNKNOWN
