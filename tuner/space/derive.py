"""Derivation of a search space from a short probe, for a model without a file. Pure.

Ranges extend into the infeasible region; neighbouring values differ visibly in effect.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from serving.settings import SETTINGS
from tuner.errors import InvalidSpace
from tuner.space import equivalence, files
from tuner.space.equivalence import THREAD_OVERHEAD_CORES
from tuner.space.knobs import DeviceKnob, FloatKnob, IntKnob, Knob, spread
from tuner.space.narrowing import CLOCK, SHARE
from tuner.space.probe import ProbeResult
from tuner.space.space import SearchSpace

LONG_BATCH_S = 0.025
"""Duration, a quarter of a quota period, above which batches spread unevenly."""
GAIN = 1.05
"""Time per item, relative to the best, below which larger batches gain nothing."""

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_THREADS = (1, 2, 4, 8)
_CPU_SHARES = (0.3, 0.5, 0.75, 1.0, 1.5)
_PADS = (1, 8, 32, 128)
_SHARES = (12, 25, 50, 100)
_MAX_SIZE = 4096
_MIN_TIMEOUT_US = 50
_MAX_TIMEOUT_US = 10_000_000
_MIN_MEMORY_MB = 8


class _Derived(NamedTuple):
    knob: Knob
    reason: str


def derive(probe: ProbeResult) -> SearchSpace:
    """Return the space for a probe, or raise InvalidSpace if the machine cannot hold a replica."""
    rules, _ = _rules(probe)
    return SearchSpace(
        name=pathlib.PurePath(probe.model).stem,
        knobs=tuple(derived.knob for derived in _knobs(probe)),
        constraints=("replica.count * replica.memory_mb <= machine.memory_mb",),
        equivalence=rules,
    )


def text(probe: ProbeResult) -> str:
    """Return the derived space as YAML, with a reason for each range."""
    machine = probe.machine
    comments = {derived.knob.name: derived.reason for derived in _knobs(probe)}
    comments["head"] = (
        f"Search space of {probe.model}, derived by a probe at concurrency "
        f"{probe.concurrency}{_batch_note(probe)} on {machine.cores} cores and "
        f"{machine.memory_mb} MiB.\nThe probe was short: review the ranges. Format of the "
        "file: docs/search-spaces.md."
    )
    if probe.whole:
        comments["head"] += (
            "\nThe batching knobs are left out: the model is served whole, one request "
            f"at a time ({probe.whole})."
        )
    comments["constraints"] = "Limits are upper bounds: all replicas may reach theirs at once."
    comments["equivalence"] = _rules(probe)[1]
    return files.dump(derive(probe), comments)


def _knobs(probe: ProbeResult) -> list[_Derived]:
    makers = [_count, _cpu, _memory, _threads]
    if not probe.whole:
        makers += [_size, _timeout]
        makers += [_pad_to] if probe.pads else []
    derived = [make(probe) for make in makers]
    if len(set(probe.machine.gpu_clocks_mhz)) > 1:
        reason = "Clocks to which the GPU can be locked; the highest is the default."
        derived.append(_Derived(DeviceKnob(name=CLOCK, unit="MHz"), reason))
    if not probe.machine.no_sharing:
        reason = "Largest share of the GPU's threads for a replica; the default is all of them."
        derived.append(_Derived(_log_knob(SHARE, _SHARES, default=_SHARES[-1]), reason))
    return derived


def _count(probe: ProbeResult) -> _Derived:
    machine = probe.machine
    bounds = {
        f"twice the machine's cores ({machine.cores})": 2 * machine.cores,
        "as many as its memory holds": max(1, int(machine.memory_mb / probe.peak_memory_mb[1])),
        f"one for each {_unit(probe)} in flight": probe.items,
        "the most that the engine starts": _COUNTS[-1],
    }
    bound = min(bounds, key=lambda name: bounds[name])
    most = bounds[bound]
    counts = {count for count in _COUNTS if count <= most} | {most}
    return _Derived(_log_knob("replica.count", counts, default=1), f"Up to {most}: {bound}.")


def _cpu(probe: ProbeResult) -> _Derived:
    used, cores = probe.cpu_cores_used, float(probe.machine.cores)
    threads = _thread_choices(probe)
    wanted = {share * used for share in _CPU_SHARES} | {used * count for count in threads}
    wanted.add(used * threads[-1] + THREAD_OVERHEAD_CORES)
    values = sorted({max(0.05, min(cores, round(value, 2))) for value in wanted})
    knob = FloatKnob(
        name="replica.cpu",
        unit=SETTINGS["replica.cpu"].unit,
        low=values[0],
        high=values[-1],
        grid=tuple(values),
        scale="log",
        default=values[-1],
    )
    reason = (
        f"A busy replica used {used:.2g} cores with one thread: from 0.3 of that to what "
        "all its threads can use. The default never limits it, as an untuned server sets "
        "no quota."
    )
    return _Derived(knob, reason)


def _memory(probe: ProbeResult) -> _Derived:
    smallest, peak = probe.peak_memory_mb[1], max(probe.peak_memory_mb.values())
    machine_mb = probe.machine.memory_mb
    if machine_mb < max(smallest, probe.idle_memory_mb, _MIN_MEMORY_MB):
        raise InvalidSpace(
            probe.model,
            "replica.memory_mb",
            f"one replica used {smallest:.0f} MiB in the probe, but the machine has {machine_mb} "
            "MiB: use a smaller model or a larger machine",
        )
    low = min(machine_mb, max(_MIN_MEMORY_MB, math.ceil(1.3 * smallest)))
    high = min(machine_mb, max(low, math.ceil(4 * peak)))
    values = {min(high, math.ceil(value)) for value in _log_spread(low, high)}
    reason = (
        f"A replica used {probe.idle_memory_mb:.0f} MiB idle, {smallest:.0f} with batches "
        f"of 1 and {peak:.0f} at its peak: from 1.3 times the first to 4 times the last. "
        "The default is the largest, as an untuned server sets no limit."
    )
    return _Derived(_log_knob("replica.memory_mb", values, default=max(values)), reason)


def _threads(probe: ProbeResult) -> _Derived:
    reason = f"Powers of two up to the machine's cores ({probe.machine.cores}), at most 8."
    return _Derived(_log_knob("replica.threads", _thread_choices(probe), default=1), reason)


def _thread_choices(probe: ProbeResult) -> list[int]:
    return [threads for threads in _THREADS if threads <= probe.machine.cores]


def _size(probe: ProbeResult) -> _Derived:
    times = [f"{size}: {1000 * s:.3g} ms" for size, s in sorted(probe.service_time_s.items())]
    default = SETTINGS["batching.max_size"].default
    assert isinstance(default, int)
    reason = (
        f"Time of a batch by its size: {', '.join(times)}. The sizes end where a larger "
        f"batch gains nothing per item, or where one holds all {probe.items} "
        f"{_unit(probe)}s; the server's default, {default}, is always included."
    )
    sizes = {*_sizes(probe), default}
    return _Derived(_log_knob("batching.max_size", sizes, default=default), reason)


def _sizes(probe: ProbeResult) -> list[int]:
    per_item = {size: time_s / size for size, time_s in sorted(probe.service_time_s.items())}
    best = min(per_item.values())
    enough = next(size for size, time_s in per_item.items() if time_s <= GAIN * best)
    most = min(_MAX_SIZE, _power_above(probe.items))
    if enough < max(per_item):
        most = min(most, _power_above(enough))
    return [2**power for power in range(most.bit_length())]


def _max_s(probe: ProbeResult) -> float:
    sizes = sorted(probe.service_time_s)
    times_s = [probe.service_time_s[size] for size in sizes]
    return float(np.interp(min(_sizes(probe)[-1], probe.items), sizes, times_s))


def _timeout(probe: ProbeResult) -> _Derived:
    max_s = _max_s(probe)
    low = max(_MIN_TIMEOUT_US, 1e6 * probe.service_time_s[1] / 2)
    high = min(_MAX_TIMEOUT_US, max(2e6 * max_s, 4 * low))
    values = {int(float(f"{value:.2g}")) for value in _log_spread(min(low, high), high)}
    reason = (
        "0 takes what is waiting at once. Otherwise from half the service time of one "
        "item to twice that of the largest batch: waiting longer costs more than a "
        "fuller batch gains."
    )
    return _Derived(_log_knob("batching.timeout_us", values, default=0, zero=True), reason)


def _pad_to(probe: ProbeResult) -> _Derived:  # noqa: ARG001 - as its like
    reason = (
        "Requests differ in size. Padded to a multiple of this value, more of them share "
        "a call; 1 pads nothing, like an untuned server. Computing the padding is wasted."
    )
    return _Derived(_log_knob("batching.pad_to", _PADS, default=1), reason)


def _rules(probe: ProbeResult) -> tuple[tuple[str, ...], str]:
    max_s = _max_s(probe)
    left_out: dict[str, str] = {}
    if max_s >= LONG_BATCH_S:
        left_out["cpu-over-machine"] = (
            f"cpu-over-machine is left out: a batch takes {1000 * max_s:.3g} ms, so "
            "few fit into a quota period of 100 ms, and they do not spread evenly over "
            "the replicas."
        )
    if probe.cpu_cores_used > 1 + THREAD_OVERHEAD_CORES:
        left_out["cpu-over-threads"] = (
            "cpu-over-threads is left out: with one thread the model used "
            f"{probe.cpu_cores_used:.2g} cores, so it starts its own threads."
        )
    rules = tuple(
        rule
        for rule in equivalence.RULES
        if rule not in left_out and not (probe.whole and rule.startswith("batch-"))
    )
    reasons = ["Candidates that behave alike on this engine are searched once.", *left_out.values()]
    return rules, "\n".join(reasons)


def _unit(probe: ProbeResult) -> str:
    return "request" if probe.client_batch == 1 else "item"


def _batch_note(probe: ProbeResult) -> str:
    return "" if probe.client_batch == 1 else f" with {probe.client_batch} items in each request"


def _log_knob(name: str, values: Iterable[int], *, default: int, zero: bool = False) -> IntKnob:
    grid = tuple(sorted(set(values)))
    return IntKnob(
        name=name,
        unit=SETTINGS[name].unit,
        low=grid[0],
        high=grid[-1],
        grid=grid,
        scale="log",
        zero=zero,
        default=default,
    )


def _log_spread(low: float, high: float) -> list[float]:
    return spread(low, high, is_log=True, is_whole=False, step=None, points=5)


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()
