"""`tune sample`: random configurations under random workloads, into one CSV."""

from __future__ import annotations

import argparse
import os
import pathlib

from tuner import sample
from tuner.commands import options
from tuner.commands.said import Said
from tuner.errors import WrongUse
from tuner.progress import Terminal
from tuner.report import wording
from tuner.sample import Order
from tuner.settings import MeasurementSettings, TargetSettings

CONCURRENCIES = "1,5,10,20,30,40,50,60"
CLIENT_BATCHES = "1"
DRAWN_FROM = ["model", "trust", "payload", "shape", "values", "home", "min_accuracy"]
"""Target settings, besides workload and space."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_group(parser, "target", only=DRAWN_FROM)
    drawn = parser.add_argument_group("what is drawn")
    drawn.add_argument(
        "--count",
        required=True,
        type=options.parsing(int),
        metavar="COUNT",
        help="rows of the file in all, those included that are in it",
    )
    drawn.add_argument(
        "--concurrency",
        dest="concurrencies",
        default=CONCURRENCIES,
        type=options.parsing(numbers),
        metavar="N,N,...",
        help=f"requests in flight, of which each row draws one; default {CONCURRENCIES}",
    )
    drawn.add_argument(
        "--client-batch",
        dest="client_batches",
        default=CLIENT_BATCHES,
        type=options.parsing(numbers),
        metavar="N,N,...",
        help=f"items in each request, of which each row draws one; default {CLIENT_BATCHES}",
    )
    drawn.add_argument(
        "--seed",
        default=0,
        type=options.parsing(int),
        metavar="S",
        help="seed of the draws and of random inputs; default 0",
    )
    drawn.add_argument(
        "--space",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="search space to draw from; default: the model's bundled one",
    )
    parser.add_argument(
        "--out",
        required=True,
        type=pathlib.Path,
        metavar="FILE",
        help="CSV file to write, or to go on with",
    )
    options.add_group(parser, "measurement", only=["requests", "seconds", "warmup_s", "timeout_s"])
    options.add_json(parser)


def numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers, dropping duplicates.

    Raises:
        ValueError: anything else.
    """
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(
            f"{text!r} is no list of whole numbers, expected for example 1,5,20"
        ) from None


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Run the command."""
    order = _order(arguments)
    done = sample.sample(order, terminal=terminal)
    whole = sum(done.statuses.values())
    ended = ", ".join(f"{count} {status}" for status, count in done.statuses.most_common())
    return Said(
        text=f"{order.out}: {wording.plural(whole, 'row')} ({ended}), {done.measured} of them new",
        data={
            "file": str(order.out),
            "rows": whole,
            "measured": done.measured,
            "statuses": dict(done.statuses),
            "columns": list(done.columns),
            "notes": list(done.notes),
        },
    )


def _order(arguments: argparse.Namespace) -> Order:
    """Return the validated request.

    Raises:
        WrongUse: a value is out of range, or the file is not writable.
    """
    for option, value, least in (("--count", arguments.count, 1), ("--seed", arguments.seed, 0)):
        if value < least:
            raise WrongUse(f"{option} {value}: expected a whole number from {least}")
    given = {
        name: getattr(arguments, name)
        for name in ("space", *DRAWN_FROM)
        if hasattr(arguments, name)
    }
    targets = [
        TargetSettings(concurrency=concurrency, client_batch=client_batch, **given)
        for concurrency in sorted(arguments.concurrencies)
        for client_batch in sorted(arguments.client_batches)
    ]
    out: pathlib.Path = arguments.out
    if not os.access(out.parent, os.W_OK | os.X_OK) or out.is_dir():
        missing = "" if out.parent.is_dir() else f": there is no folder {out.parent}"
        raise WrongUse(f"--out {out} cannot be written{missing}")
    return Order(
        target=targets[-1],
        measurement=options.group_of(arguments, MeasurementSettings),
        concurrencies=arguments.concurrencies,
        client_batches=arguments.client_batches,
        count=arguments.count,
        seed=arguments.seed,
        out=out,
    )
