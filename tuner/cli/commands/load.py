"""`tune load`: measure any HTTP server at a fixed concurrency or rate."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import Any

import rich.console
import rich.table
import rich.text

from serving import zoo
from serving.errors import ServingError
from serving.system import user_files
from serving.values import Signature
from serving.zoo import bundled
from tuner.cli.commands import CommandResult, options
from tuner.errors import LaunchFailed, LoadGeneratorFailed, TunerError, UsageError
from tuner.evaluation import request_source
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.launching import machine, readiness
from tuner.load_generator import oip_body, payloads
from tuner.load_generator.client_group import make_load_generator
from tuner.load_generator.endpoint import Endpoint, parse_header, parse_url
from tuner.load_generator.payload_files import MAX_BYTES
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import OpenLoopPlan, PhasePlan, Warmup
from tuner.measurement import host, summary
from tuner.measurement.measurement_warnings import warnings_of
from tuner.measurement.outcome import MAX_ERROR_SHARE, measure_outcome
from tuner.metrics import tail_latency
from tuner.report import formatting
from tuner.settings.measurement import SETTLING_S, MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import NO_ARRIVALS, NO_LOAD
from tuner.study.interruption import resumable
from tuner.study.progress import Terminal
from tuner.values.measurement import Measurement

LOAD = ("concurrency", "rate", "arrivals", "client_batch", "payload", "shape", "values")
"""Target settings that `tune load` accepts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tune load` to a parser."""
    parser.add_argument(
        "url",
        metavar="URL",
        help="server: http://HOST:PORT with --model, or the full URL of a model or page",
    )
    told = "model on an Open Inference Protocol server; default: from the URL"
    options.add_value(parser, "--model", "NAME", told)
    told = "header sent with every request; repeatable; default: none"
    options.add_value(parser, "--header", "'NAME: VALUE'", told, action="append", default=[])
    options.add_group(parser, "target", only=LOAD)
    options.add_group(
        parser,
        "measurement",
        only=["requests", "seconds", "warmup_s", "timeout_s", "load_clients"],
        instead={"seconds": 2},
    )
    told = "deadline of each request (ms), for goodput, the responses within it; default: none"
    options.add_value(parser, "--slo-ms", "MS", told, parse=float)
    told = "seed of the arrivals of an open loop (poisson, burst); default 0"
    options.add_value(parser, "--seed", "S", told, parse=_parse_seed, default=0)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    settings = options.group_of(arguments, MeasurementSettings)
    asked = _target_settings(arguments)
    load = make_open_loop_plan(asked, seed=arguments.seed)
    target = parse_url(arguments.url)
    if arguments.model:
        target = dataclasses.replace(target, path=payloads.infer_path(arguments.model))
    sent = _payloads(target, asked, arguments.header)
    with resumable(None), make_load_generator(settings.load_clients) as generator:
        where = f"{target.host}:{target.port}{sent.path}"
        terminal.say(f"{sent.method} {where}: {sent.description}")
        generator.set_payloads(sent)
        before = host.read()
        plan = _plan(target, asked, load, settings)
        result = generator.run(plan)
        after = host.read()
    return _make_result(result, before, after, plan, settings, sent)


def _parse_seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise ValueError(f"{text!r}: expected a whole number from 0")
    return seed


def _target_settings(arguments: argparse.Namespace) -> TargetSettings:
    named = argparse.Namespace(**{**vars(arguments), "model": arguments.model or arguments.url})
    asked = options.group_of(named, TargetSettings)
    if asked.concurrency is None and not asked.is_open:
        raise UsageError(NO_LOAD)
    if asked.arrivals is not None and not asked.is_open:
        raise UsageError(f"--arrivals {asked.arrivals}: {NO_ARRIVALS}")
    return asked


def _plan(
    target: Endpoint,
    asked: TargetSettings,
    load: OpenLoopPlan | None,
    settings: MeasurementSettings,
) -> PhasePlan:
    plan = PhasePlan(
        host=target.host,
        port=target.port,
        concurrency=asked.in_flight,
        seconds=settings.measured_s if settings.requests is None else None,
        requests=settings.requests,
        warmup=Warmup(seconds=settings.warmup_s, settling_s=SETTLING_S),
        timeout_s=settings.timeout_s,
    )
    return plan if load is None else plan.at(load)


def _payloads(target: Endpoint, asked: TargetSettings, headers: list[str]) -> Payloads:
    extra = dict(parse_header(text) for text in headers)
    if target.metadata_path is None:
        for flag, told in (
            (f"--client-batch {asked.client_batch}", asked.client_batch > 1),
            (f"--shape {' '.join(asked.shape)}", asked.shape),
            (f"--values {' '.join(asked.values)}", asked.values),
        ):
            if told:
                raise UsageError(
                    f"{flag}: only for a model (--model NAME, or its URL); "
                    "what any other URL is sent is sent as it is"
                )
        return _raw(target, asked.payload, extra)
    name = target.model or ""
    signature = _signature(target, extra)
    oip_body.check_client_batch(signature, asked.client_batch, name)
    found = _choose_payloads(asked, name, signature)
    path = target.infer_path or found.path
    return dataclasses.replace(found, path=path, headers={**found.headers, **extra})


def _raw(target: Endpoint, file: str | None, headers: dict[str, str]) -> Payloads:
    if target.path == "/" and file is None:
        raise UsageError(
            f"URL http://{target.host}:{target.port}/ names no model: give --model NAME, or the URL of a page"
        )
    body, method, told = b"", "GET", "GET without a body"
    if file is not None:
        try:
            body = user_files.read(file, max_bytes=MAX_BYTES)
        except OSError as error:
            raise UsageError(f"--payload {file}: {error.strerror or error}") from error
        method, told = "POST", f"{file}, {len(body)} bytes"
    return payloads.raw([body], path=target.path, method=method, headers=headers, description=told)


def _choose_payloads(asked: TargetSettings, model: str, signature: Signature) -> Payloads:
    card = None
    # Ignore another model of the same name, or one that cannot be built here.
    with contextlib.suppress(ServingError):
        card = zoo.find(model) if model in bundled.names() else None
    try:
        found = request_source.make_request_source(asked, card, signature)
        return found.payloads(model=model, client_batch=asked.client_batch, seed=0)
    except TunerError:
        if card is None:
            raise
    found = request_source.make_request_source(asked, None, signature)
    return found.payloads(model=model, client_batch=asked.client_batch, seed=0)


def _signature(target: Endpoint, headers: dict[str, str]) -> Signature:
    assert target.metadata_path is not None
    try:
        return readiness.signature(target.host, target.port, target.metadata_path, headers)
    except LaunchFailed as error:
        raise LoadGeneratorFailed(str(error)) from error


def _make_result(
    result: PhaseResult,
    before: host.HostReading,
    after: host.HostReading,
    plan: PhasePlan,
    settings: MeasurementSettings,
    sent: Payloads,
) -> CommandResult:
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
        deadline_ms=settings.slo_ms,
        rate_per_s=plan.rate_per_s,
    )
    if measurement is None:
        raise TunerError(f"nothing could be measured: {outcome.reason}")
    notes = list(
        warnings_of(measurement, cores=machine.read().cores, load_clients=settings.load_clients)
    )
    if not measurement.has_p99:
        notes.append(f"no p99: {tail_latency.too_few(measurement)}")
    problems = []
    if result.fell_behind:
        problems.append(
            f"the server fell behind by {formatting.percent(result.fell_behind)} of the "
            "requests that were due: it is overloaded, and latencies grow with the "
            "measured time"
        )
    if sent.is_synthetic:
        notes.append(f"the payloads are synthetic: {sent.description}")
    if measurement.errors:
        finished = measurement.requests + measurement.errors
        share = measurement.errors / finished
        failures = _failure_text(result, measurement.errors, finished, is_open=is_open)
        if share > MAX_ERROR_SHARE:
            problems.append(failures)
            problems.append(
                f"more than {formatting.percent(MAX_ERROR_SHARE)} of the requests failed: "
                "errors are often faster than responses, so the other figures mean little"
            )
        else:
            notes.append(failures)
    notes += problems
    text = rich.console.Group(
        _table(measurement), *(rich.text.Text(f"note: {note}") for note in notes)
    )
    return CommandResult(
        text=text,
        data={**_data(measurement, plan, notes), "slo_ms": settings.slo_ms, "problems": problems},
        exit_code=1 if problems else 0,
    )


def _failure_text(result: PhaseResult, failed: int, finished: int, *, is_open: bool) -> str:
    measured = summary.is_measured(
        result.records,
        warmup_s=result.warmup_end_s,
        seconds=result.measured_s,
        is_open=is_open,
    )
    because = f"; {result.why_failed}" if result.why_failed else ""
    return (
        f"{failed:,} of {finished:,} requests failed ({formatting.percent(failed / finished)}): "
        f"{summary.statuses(result.records, measured)}{because}"
    )


def _table(measurement: Measurement) -> rich.table.Table:
    made = rich.table.Table(box=None, pad_edge=False, show_header=False)
    for name in ("mean", "p50", "p95"):
        value = formatting.number(getattr(measurement, f"{name}_ms"))
        interval = formatting.interval(getattr(measurement, f"{name}_interval"))
        made.add_row(name, f"{value} ms", f"95 % interval {interval}")
    tail = tail_latency.of_evaluation(measurement)
    value, told = "–", f"{tail.effective:,.0f} effective requests"
    if tail.is_reportable:
        value = f"{formatting.number(tail.value_ms)} ms"
        told = f"95 % interval {formatting.interval(tail.interval)}, {told}"
    made.add_row("p99", value, told)
    spread = formatting.interval(measurement.spread_interval)
    made.add_row(
        "p95 - p5", f"{formatting.number(measurement.spread_ms)} ms", f"95 % interval {spread}"
    )
    made.add_row("throughput", f"{formatting.number(measurement.throughput_per_s)} requests/s", "")
    if measurement.goodput is not None:
        told = f"95 % interval {formatting.interval(measurement.goodput_interval)}"
        made.add_row("goodput", f"{formatting.number(measurement.goodput)} requests/s", told)
    if measurement.client_batch > 1:
        made.add_row("", f"{formatting.number(measurement.items_per_s)} items/s", "")
        made.add_row("per item", f"{formatting.number(measurement.time_per_item_ms)} ms", "")
    count = f"{measurement.requests:,} in {measurement.seconds:.3g} s"
    made.add_row("answered", count, f"{measurement.errors:,} failed")
    return made


def _data(measurement: Measurement, plan: PhasePlan, notes: list[str]) -> dict[str, Any]:
    return {
        "concurrency": plan.concurrency,
        "arrivals": None if plan.rate_per_s is None else plan.spread,
        "seed": plan.seed,
        **measurement.as_json(),
        "p99_ms": measurement.p99_ms if measurement.has_p99 else None,
        "items_per_s": measurement.items_per_s,
        "time_per_item_ms": measurement.time_per_item_ms if measurement.items_per_s else None,
        "notes": notes,
    }
