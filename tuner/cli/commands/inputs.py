"""`tune inputs`: a model's inputs, and what must be declared before tuning."""

from __future__ import annotations

import argparse

import rich.console
import rich.table
import rich.text

from tuner.cli.commands import options
from tuner.cli.result import Said
from tuner.errors import TunerError, UnknownSize
from tuner.evaluation import correctness_check, request_source
from tuner.evaluation.evaluator import Bench
from tuner.evaluation.request_source import Sending
from tuner.settings import MeasurementSettings, TargetSettings
from tuner.study import problem as study_problem
from tuner.study.interruption import resumable
from tuner.study.preparation import started
from tuner.study.progress import Terminal

TARGET = ("trust", "payload", "shape", "values", "home")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "model", metavar="MODEL", help="as --model of a study: a name, a file or a folder"
    )
    options.add_group(parser, "target", only=TARGET)
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Start the server, read the inputs, and send one request."""
    target = options.group_of(arguments, TargetSettings)
    card = study_problem.card_of(target.model, is_trusted=target.trust)
    bench = Bench(
        model=target.model,
        concurrency=1,
        settings=MeasurementSettings(),
        launcher=study_problem.launcher_of(target),
    )
    with resumable(None), bench:
        served = started(bench)
        found = request_source.sending(target, card, served.told_signature())
        problem: TunerError | None = found.problem
        if problem is None:
            assert bench.address is not None
            sent = found.payloads(model=served.model, client_batch=1, seed=0)
            if refused := correctness_check.refusal(bench.address, sent):
                problem = TunerError(
                    f"a request was refused: {refused}; sent was {sent.description}"
                )
        terminal.check()
    return _said(served.model, found, problem)


def _said(model: str, found: Sending, problem: TunerError | None) -> Said:
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
    if not facts.whole:
        reasons = dict.fromkeys(
            one.items.partition(": ")[2] or one.items.partition(", ")[2] for one in facts.inputs
        )
        parts.append(rich.text.Text(f"items: {'; '.join(reasons)}"))
    if facts.whole:
        parts.append(
            rich.text.Text(f"{model} is served whole, one request at a time: {facts.whole}")
        )
    if problem is None:
        parts.append(rich.text.Text("requests were sent, and answered"))
    if option:
        parts.append(rich.text.Text(f"to be told, with your own sizes: {option}"))
    return Said(
        text=rich.console.Group(*parts),
        data={"model": model, **facts.as_json(), "missing": option or None},
        problem=problem,
    )
