"""`tune inputs`: a model's inputs, and what must be declared before tuning."""

from __future__ import annotations

import argparse

import rich.console
import rich.table
import rich.text

from tuner.cli.commands import CommandResult, options
from tuner.errors import TunerError, UnknownSize
from tuner.evaluation import correctness_check, request_source
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.request_source import RequestSource
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem as study_problem
from tuner.study.interruption import resumable
from tuner.study.preparation import start_target
from tuner.study.progress import Terminal

TARGET = ("trust", "payload", "shape", "values", "spawner")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "model", metavar="MODEL", help="model name, file or folder, as --model of a study"
    )
    options.add_group(parser, "target", only=TARGET)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Start the server, read the inputs, and send one request."""
    target = options.group_of(arguments, TargetSettings)
    card = study_problem.find_spec(target.model, is_trusted=target.trust)
    evaluator = Evaluator(
        model=target.model,
        concurrency=1,
        settings=MeasurementSettings(),
        launcher=study_problem.launcher_of(target),
    )
    with resumable(None), evaluator:
        served = start_target(evaluator)
        found = request_source.make_request_source(target, card, served.told_signature())
        problem: TunerError | None = found.problem
        if problem is None:
            assert evaluator.address is not None
            sent = found.payloads(model=served.model, client_batch=1, seed=0)
            if refused := correctness_check.rejection_reason(evaluator.address, sent):
                problem = TunerError(
                    f"the server rejected a request: {refused}; sent: {sent.description}"
                )
        terminal.check()
    return _make_result(served.model, found, problem)


def _make_result(model: str, found: RequestSource, problem: TunerError | None) -> CommandResult:
    facts = found.facts
    option = problem.option if isinstance(problem, UnknownSize) else ""
    made = rich.table.Table(box=None, pad_edge=False)
    for name in ("input", "datatype", "shape", "item axis", "free", "sent"):
        made.add_column(name, overflow="fold", no_wrap=name in {"input", "shape", "item axis"})
    for one in facts.inputs:
        free = ", ".join(one.free) or "none"
        axis = one.items.partition(":")[0].partition(",")[0]
        row = (one.name, one.datatype, one.shape, axis, free, one.sent)
        made.add_row(*map(rich.text.Text, row))
    parts: list[rich.console.RenderableType] = [made, rich.text.Text(f"source: {facts.source}")]
    told = f"{model} is served whole, one request at a time: {facts.whole}"
    if not facts.whole:
        reasons = dict.fromkeys(
            one.items.partition(": ")[2] or one.items.partition(", ")[2] for one in facts.inputs
        )
        told = f"items: {'; '.join(reasons)}"
    parts.append(rich.text.Text(told))
    if problem is None:
        parts.append(rich.text.Text("requests were sent and answered"))
    if option:
        parts.append(rich.text.Text(f"needed, with your own sizes: {option}"))
    return CommandResult(
        text=rich.console.Group(*parts),
        data={"model": model, **facts.as_json(), "missing": option or None},
        problem=problem,
    )
