"""`tune doctor`: whether this machine can measure, and how small a gain it can show."""

from __future__ import annotations

import argparse
import dataclasses

import rich.console
import rich.text

from tuner import doctor, inputs
from tuner.commands import options
from tuner.commands.said import Said
from tuner.commands.study import finite
from tuner.doctor import Finding
from tuner.errors import WrongUse
from tuner.interruption import resumable
from tuner.progress import Terminal
from tuner.report import lines

FEWEST_LAUNCHES = 2
STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and whether to clean."""
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        default="echo",
        help="model of the noise measurement; default echo",
    )
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=options.parsing(int),
        default=8,
        help="requests in flight; default 8",
    )
    parser.add_argument(
        "--launches",
        metavar="COUNT",
        type=options.parsing(int),
        default=5,
        help="fresh launches that are measured, some 4 s each; 0 skips the measurement; default 5",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove control groups, processes, directories, containers and GPU clocks that dead servers left, "
        "and measure nothing; default: only look",
    )
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Look, and measure or clean."""
    if arguments.concurrency < 1:
        raise WrongUse(f"--concurrency {arguments.concurrency}: expected a whole number from 1")
    if arguments.launches and arguments.launches < FEWEST_LAUNCHES:
        raise WrongUse(f"--launches {arguments.launches}: expected 0, or a whole number from 2")
    if arguments.clean:
        return _cleaned()
    if arguments.launches:
        inputs.card_of(arguments.model)  # a wrong name is said before anything is looked at
    findings = doctor.findings()
    parts = [_line(finding) for finding in findings]
    data: dict[str, object] = {"findings": [dataclasses.asdict(finding) for finding in findings]}
    if arguments.launches:
        lines.say(
            terminal.console,
            f"measuring the noise of {arguments.model}: {arguments.launches} fresh launches",
        )
        with resumable(None):
            found = doctor.noise_of(
                arguments.model, concurrency=arguments.concurrency, launches=arguments.launches
            )
        parts += [rich.text.Text(sentence) for sentence in doctor.sentences(found)]
        data["noise"] = finite(dataclasses.asdict(found))
    is_wrong = any(finding.state == "wrong" for finding in findings)
    return Said(text=rich.console.Group(*parts), data=data, exit_code=1 if is_wrong else 0)


def _cleaned() -> Said:
    removed = doctor.cleaned()
    said = [f"removed {path}" for path in removed] or ["nothing was left behind"]
    return Said(text="\n".join(said), data={"removed": list(removed)})


def _line(finding: Finding) -> rich.text.Text:
    line = rich.text.Text(f"{finding.state:<6}", style=STYLES[finding.state])
    return line.append(f"{finding.name:<12} {finding.text}", style="not bold default")
