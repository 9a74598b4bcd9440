"""A phase of load dealt out to several clients, and their results joined.

All clients keep one schedule. In a closed loop each has its share of the connections; in an open
loop it sends every k-th arrival. Records are joined raw, so that no percentile is averaged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan, Share
from tuner.values.request_records import CpuTimeSeries, RequestRecords


def deal(plan: PhasePlan, clients: int) -> list[PhasePlan]:
    """Return the plan of each client; together they are the phase.

    The rule that ends a phase early needs the mean of all requests, so that no client has it.
    """
    plans: list[PhasePlan] = []
    first = 0
    for number in range(clients):
        concurrency = _part(plan.concurrency, number, clients)
        requests = plan.requests
        if requests is not None and plan.rate_per_s is None:
            requests = _part(requests, number, clients)
        share = Share(number=number, clients=clients, first_connection=first)
        plans.append(
            dataclasses.replace(
                plan,
                concurrency=concurrency,
                requests=requests,
                answers=math.ceil(plan.answers / clients),
                race=None,
                share=share,
            )
        )
        first += concurrency
    return plans


def _part(whole: int, number: int, clients: int) -> int:
    return whole // clients + (number < whole % clients)


def join(plans: Sequence[PhasePlan], results: Sequence[PhaseResult]) -> PhaseResult:
    """Return the result of the phase, with times since the earliest origin.

    The measured part is that of all clients, who are told when it begins and ends; if requests are
    counted, it ends with the last response.
    """
    origin_s = min(one.origin_s for one in results)
    shifts = [one.origin_s - origin_s for one in results]
    ends = [one.measured_end_s + shift for one, shift in zip(results, shifts, strict=True)]
    lost = [one for one in results if one.last_loss]
    failed = [one for one in results if one.first_error]
    return PhaseResult(
        records=_joined_records(plans, results, shifts),
        origin_s=origin_s,
        warmup_end_s=max(
            one.warmup_end_s + shift for one, shift in zip(results, shifts, strict=True)
        ),
        measured_end_s=max(ends) if plans[0].seconds is None else min(ends),
        client_cpu_s=sum(one.client_cpu_s for one in results),
        client_cpu=_summed(results, shifts),
        wall_s=max(one.wall_s for one in results),
        reconnects=sum(one.reconnects for one in results),
        last_loss=lost[-1].last_loss if lost else "",
        fell_behind=max(one.fell_behind for one in results),
        first_error=failed[0].first_error if failed else "",
        hint=failed[0].hint if failed else "",
    )


def _joined_records(
    plans: Sequence[PhasePlan], results: Sequence[PhaseResult], shifts: Sequence[float]
) -> RequestRecords:
    columns = {}
    for field in dataclasses.fields(RequestRecords):
        parts = [getattr(one.records, field.name) for one in results]
        if field.name.endswith("_s"):
            parts = [part + shift for part, shift in zip(parts, shifts, strict=True)]
        elif field.name == "connection":  # -1: none was free
            parts = [
                np.where(part < 0, part, part + _first(plan))
                for part, plan in zip(parts, plans, strict=True)
            ]
        columns[field.name] = np.concatenate(parts).astype(parts[0].dtype)
    order = np.argsort(columns["finished_s"], kind="stable")
    return RequestRecords(**{name: column[order] for name, column in columns.items()})


def _first(plan: PhasePlan) -> int:
    return 0 if plan.share is None else plan.share.first_connection


def _summed(results: Sequence[PhaseResult], shifts: Sequence[float]) -> CpuTimeSeries:
    """Return the CPU time of all clients at every time at which one of them was read."""
    series = [
        (one.client_cpu.at_s + shift, one.client_cpu.used_s)
        for one, shift in zip(results, shifts, strict=True)
    ]
    at_s = np.unique(np.concatenate([moments for moments, _ in series]))
    used_s = sum((np.interp(at_s, moments, used) for moments, used in series), np.zeros(len(at_s)))
    return CpuTimeSeries(at_s=at_s, used_s=used_s)
