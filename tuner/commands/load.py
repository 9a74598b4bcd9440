"""`tune load`: drive any HTTP server at a set concurrency, or at a set rate, and say how long answers take."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
from typing import Any

import numpy as np
import rich.console
import rich.table
import rich.text

from serving import zoo
from serving.errors import ServingError
from serving.values import Signature
from tuner import tails
from tuner.commands import options
from tuner.commands.said import Said
from tuner.errors import LaunchFailed, LoadFailed, TunerError, WrongUse
from tuner.interruption import resumable
from tuner.launching import machine, readiness
from tuner.measurement import host, summary
from tuner.measurement.doubts import doubts
from tuner.measurement.outcome import MOST_ERROR_SHARE, measure_outcome
from tuner.progress import Terminal
from tuner.report import lines, wording
from tuner.settings import MOST_CLIENT_BATCH, MeasurementSettings
from tuner.traffic import payload_files, payloads, stacking
from tuner.traffic.generator import Generator, LoadResult
from tuner.traffic.payloads import Payloads
from tuner.traffic.plan import LoadPlan, Warmup
from tuner.traffic.target import Target, parse_header, parse_url
from tuner.values import Interval, Measurement

SYNTHETIC_REQUESTS = 64
MOST_OPEN = 500
"""Requests in flight of an open loop, at most: at 1,000 a second what a server of half a second needs."""
MOST_RATE_PER_S = 1e6
LATE_S = 1e-3
MOST_LATE_SHARE = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server, what is sent, and the load."""
    parser.add_argument(
        "url",
        metavar="URL",
        help="the server: http://HOST:PORT with --model, or the whole URL of a model or a page",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="model of an Open Inference Protocol server; default: from the URL",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="header that is sent with every request; may be repeated; default none",
    )
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--concurrency",
        metavar="N",
        type=options.parsing(int),
        help="requests in flight at any time (closed loop); with --rate the most that may be, default "
        f"{MOST_OPEN}",
    )
    load.add_argument(
        "--rate",
        metavar="R",
        type=options.parsing(float),
        help="requests a second, sent when they are due and not when answers come (open loop); "
        "default: closed loop",
    )
    load.add_argument(
        "--arrivals",
        choices=("poisson", "constant"),
        help="how an open loop spreads its requests over time; default poisson",
    )
    options.add_group(parser, "target", only=["client_batch", "payload"])
    options.add_group(parser, "measurement", only=["requests", "seconds", "warmup_s", "timeout_s"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Drive the load and summarise it."""
    settings = options.group_of(arguments, MeasurementSettings)
    _check_load(arguments)
    target = parse_url(arguments.url)
    if arguments.model:
        target = dataclasses.replace(target, path=payloads.infer_path(arguments.model))
    batch = getattr(arguments, "client_batch", 1)
    sent = _payloads(target, getattr(arguments, "payload", None), arguments.header, batch)
    with resumable(None), Generator() as generator:
        lines.say(
            terminal.console,
            f"{sent.method} {target.host}:{target.port}{sent.path}: {sent.description}",
        )
        generator.set_payloads(sent)
        before = host.read()
        plan = _plan(target, arguments, settings)
        result = generator.run(plan)
        after = host.read()
    return _said(result, before, after, plan, settings, sent)


def _check_load(arguments: argparse.Namespace) -> None:
    """Refuse a load without sense."""
    batch = getattr(arguments, "client_batch", 1)
    if not 1 <= batch <= MOST_CLIENT_BATCH:
        raise WrongUse(
            f"--client-batch {batch}: expected a whole number from 1 to {MOST_CLIENT_BATCH}"
        )
    if arguments.concurrency is None and arguments.rate is None:
        raise WrongUse("how much load? give --concurrency N (closed loop) or --rate R (open loop)")
    if arguments.concurrency is not None and arguments.concurrency < 1:
        raise WrongUse(f"--concurrency {arguments.concurrency}: expected a whole number from 1")
    if arguments.rate is None and arguments.arrivals is not None:
        raise WrongUse("--arrivals belongs to an open loop: give --rate R, too")
    if arguments.rate is not None and not 0 < arguments.rate <= MOST_RATE_PER_S:
        raise WrongUse(
            f"--rate {arguments.rate:g}: expected requests a second, above 0 and at most "
            f"{MOST_RATE_PER_S:,.0f}"
        )


def _plan(target: Target, arguments: argparse.Namespace, settings: MeasurementSettings) -> LoadPlan:
    return LoadPlan(
        host=target.host,
        port=target.port,
        concurrency=arguments.concurrency or MOST_OPEN,
        rate_per_s=arguments.rate,
        spread=arguments.arrivals or "poisson",
        seconds=settings.seconds if settings.requests is None else None,
        requests=settings.requests,
        warmup=Warmup(seconds=settings.warmup_s),
        timeout_s=settings.timeout_s,
    )


def _payloads(target: Target, file: str | None, headers: list[str], client_batch: int) -> Payloads:
    """What is sent: a model's inputs, or the file as it is, or nothing but the request line."""
    extra = dict(parse_header(text) for text in headers)
    if target.metadata_path is None:
        if client_batch > 1:
            raise WrongUse(
                f"--client-batch {client_batch}: only for a model (--model NAME, or its URL); "
                "what any other URL is sent is sent as it is"
            )
        return _raw(target, file, extra)
    name = target.model or ""
    signature = _signature(target, extra)
    stacking.check_free(signature, client_batch, name)
    if file is not None:
        found = payload_files.from_file(
            pathlib.Path(file), signature, model=name, client_batch=client_batch
        )
    else:
        found = _sample(name, signature, client_batch)
    path = target.infer_path or found.path
    return dataclasses.replace(found, path=path, headers={**found.headers, **extra})


def _raw(target: Target, file: str | None, headers: dict[str, str]) -> Payloads:
    if target.path == "/" and file is None:
        raise WrongUse(
            f"URL http://{target.host}:{target.port}/ names no model: give --model NAME, or the URL of a page"
        )
    if file is None:
        return payloads.raw(
            [b""], path=target.path, method="GET", headers=headers, description="GET without a body"
        )
    try:
        body = pathlib.Path(file).read_bytes()
    except OSError as error:
        raise WrongUse(f"--payload {file}: {error.strerror or error}") from error
    return payloads.raw(
        [body],
        path=target.path,
        method="POST",
        headers=headers,
        description=f"{file}, {len(body)} bytes",
    )


def _sample(model: str, signature: Signature, client_batch: int) -> Payloads:
    """The sample of a bundled model of that name where it fits, else random inputs."""
    # Another model of the same name, or one that cannot be built here: it gets random inputs, and the
    # description says so.
    with contextlib.suppress(WrongUse, ServingError):
        card = zoo.find(model) if model in zoo.names() else None
        if card is not None and card.sample is not None:
            return payload_files.from_npz(
                card.sample, signature, model=model, client_batch=client_batch
            )
    return payloads.synthetic(
        signature,
        SYNTHETIC_REQUESTS,
        np.random.default_rng(0),
        model=model,
        client_batch=client_batch,
    )


def _signature(target: Target, headers: dict[str, str]) -> Signature:
    """What the server says of its model."""
    assert target.metadata_path is not None
    try:
        return readiness.signature(target.host, target.port, target.metadata_path, headers)
    except LaunchFailed as error:
        raise LoadFailed(str(error)) from error


def _said(
    result: LoadResult,
    before: host.HostReading,
    after: host.HostReading,
    plan: LoadPlan,
    settings: MeasurementSettings,
    sent: Payloads,
) -> Said:
    is_open = plan.rate_per_s is not None
    outcome, measurement = measure_outcome(
        result.records,
        concurrency=None if is_open else plan.concurrency,
        warmup_s=result.warmup_end_s,
        seconds=result.measured_s,
        block_s=settings.block_s,
        noise=host.noise_between(before, after, client_cpu_s=result.client_cpu_s),
        most_error_share=1.0,
        why_failed=result.why_failed,
        client_batch=sent.client_batch,
    )
    if measurement is None:
        raise TunerError(f"nothing could be measured: {outcome.reason}")
    notes = list(doubts(measurement, cores=machine.read().cores))
    notes += _lateness(result, plan)
    if sent.is_synthetic:
        notes.append(f"the payloads are synthetic: {sent.description}")
    is_served = True
    if measurement.errors:
        finished = measurement.requests + measurement.errors
        share = measurement.errors / finished
        is_served = share <= MOST_ERROR_SHARE
        notes.append(_failed(result, measurement.errors, finished, is_open=is_open))
        if not is_served:
            notes.append(
                f"more than {wording.percent(MOST_ERROR_SHARE)} of the requests failed: errors are "
                "often quicker than answers, so the figures of the others say little"
            )
    text = rich.console.Group(
        _table(measurement), *(rich.text.Text(f"note: {note}") for note in notes)
    )
    return Said(text=text, data=_data(measurement, plan, notes), exit_code=0 if is_served else 1)


def _lateness(result: LoadResult, plan: LoadPlan) -> list[str]:
    """Whether an open loop could not keep to its schedule."""
    late_s = result.records.started_s - result.records.intended_s
    share = float(np.mean(late_s > LATE_S))
    if plan.rate_per_s is None or share <= MOST_LATE_SHARE:
        return []
    note = (
        f"{wording.percent(share)} of the requests were sent more than {1e3 * LATE_S:g} ms after they "
        f"were due: all {plan.concurrency} connections (--concurrency) were busy, or the client was; the "
        "wait counts"
    )
    return [note]


def _failed(result: LoadResult, failed: int, finished: int, *, is_open: bool) -> str:
    """How many requests failed, with which statuses, and what the server said."""
    measured = summary.is_measured(
        result.records,
        warmup_s=result.warmup_end_s,
        seconds=result.measured_s,
        is_open=is_open,
    )
    because = f"; {result.why_failed}" if result.why_failed else ""
    return (
        f"{failed:,} of {finished:,} requests failed ({wording.percent(failed / finished)}): "
        f"{summary.statuses(result.records, measured)}{because}"
    )


def _table(measurement: Measurement) -> rich.table.Table:
    made = rich.table.Table(box=None, pad_edge=False, show_header=False)
    for name, value, interval in _latencies(measurement):
        made.add_row(
            name, f"{wording.number(value)} ms", f"95 % interval {wording.interval(interval)}"
        )
    tail = tails.of_one(measurement)
    worth = f"{tail.effective:,.0f} effective requests"
    told = f"95 % interval {wording.interval(tail.interval)}, {worth}" if tail.is_told else worth
    made.add_row("p99", f"{wording.number(tail.value_ms)} ms" if tail.is_told else "–", told)
    spread = wording.interval(measurement.spread_interval)
    made.add_row(
        "p95 - p5", f"{wording.number(measurement.spread_ms)} ms", f"95 % interval {spread}"
    )
    made.add_row("throughput", f"{wording.number(measurement.throughput_per_s)} requests/s", "")
    if measurement.client_batch > 1:
        made.add_row("", f"{wording.number(measurement.items_per_s)} items/s", "")
        made.add_row("per item", f"{wording.number(measurement.time_per_item_ms)} ms", "")
    count = f"{measurement.requests:,} in {measurement.seconds:.3g} s"
    made.add_row("answered", count, f"{measurement.errors:,} failed")
    return made


def _latencies(measurement: Measurement) -> tuple[tuple[str, float, Interval], ...]:
    return (
        ("mean", measurement.mean_ms, measurement.mean_interval),
        ("p50", measurement.p50_ms, measurement.p50_interval),
        ("p95", measurement.p95_ms, measurement.p95_interval),
    )


def _data(measurement: Measurement, plan: LoadPlan, notes: list[str]) -> dict[str, Any]:
    load = {
        "concurrency": plan.concurrency,
        "rate_per_s": plan.rate_per_s,
        "arrivals": None if plan.rate_per_s is None else plan.spread,
    }
    items = {
        "items_per_s": measurement.items_per_s,
        "time_per_item_ms": measurement.time_per_item_ms if measurement.items_per_s else None,
    }
    told = {"p99_ms": measurement.p99_ms if measurement.has_p99 else None}
    return {**load, **measurement.as_json(), **told, **items, "notes": notes}
