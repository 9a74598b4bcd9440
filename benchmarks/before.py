"""Is this tree no slower than another one, an earlier commit's?

    git worktree add ../before COMMIT
    python benchmarks/before.py ../before [--cases echo,resnet] [--max-time 60] [--json]

Each case is one `tune ab`: the servers of both trees, started by the same interpreter, are up at once and are loaded
in slices that alternate, so that the moment of the machine falls out of their ratio. A case is met where the whole
interval of the mean round trip lies below 5 % more. Ends with 1 where one is worse or undecided. What a request costs
in CPU time is told by `cpu_per_request.py --tree`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ab_answers
import result

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = "mean worse by 5 %"
DECIDED = {0: "within", 3: "worse", 4: "undecided"}
"""Exit codes of `tune ab` that are answers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load of a model."""

    model: str
    concurrency: int
    max_size: int = 8


CASES = {
    "echo": Case(model="echo", concurrency=16),
    "mnist": Case(model="mnist", concurrency=4),
    "resnet": Case(model="resnet", concurrency=20),
    "alone": Case(model="resnet", concurrency=1),
}


def engine_of(tree: pathlib.Path, case: Case) -> Mapping[str, Any]:
    """An engine file: the server of a tree."""
    command = ["{python}", "-m", "serving", "--model", case.model, "--admin-port", "0"]
    command += ["--port", "{port}", "--set", "batching.max_size={batching.max_size}"]
    return {
        "name": str(tree),
        "command": command,
        "directory": str(tree),
        "environment": {"PYTHONPATH": str(tree)},
        "ready": {"path": "/v2/health/ready"},
        "request": {"protocol": "open-inference"},
        "knobs": {
            "batching.max_size": {
                "type": "int",
                "choices": [1, case.max_size],
                "default": case.max_size,
                "unit": "items",
            }
        },
    }


def compare(case: Case, trees: Sequence[pathlib.Path], max_time_s: float) -> Mapping[str, Any]:
    """Compare two trees under one load by `tune ab`; returns its answer.

    Raises:
        SystemExit: it could not be measured.
    """
    answer, code = ab_answers.ask(
        [engine_of(tree, case) for tree in trees],
        model=case.model,
        concurrency=case.concurrency,
        max_time_s=max_time_s,
        more=("--fail-if", LIMIT),
        answers=DECIDED,
    )
    return {**answer, "decision": DECIDED[code]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("before", type=pathlib.Path, help="the other tree")
    options.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    options.add_argument("--max-time", type=float, default=60.0, metavar="S", help="of each case")
    options.add_argument("--json", action="store_true", help="print what tune ab says, as JSON")
    given = options.parse_args(argv)
    unknown = [name for name in given.cases.split(",") if name not in CASES]
    if unknown or not (given.before / "serving").is_dir():
        what = (
            f"case {unknown[0]}, known: {', '.join(CASES)}"
            if unknown
            else f"no {given.before}/serving"
        )
        options.error(what)
    trees = (given.before.resolve(), ROOT)
    found = {name: compare(CASES[name], trees, given.max_time) for name in given.cases.split(",")}
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        rows = [
            (
                name,
                f"x {one['ratio']:.3f}",
                f"{one['interval'][0]:.3f} to {one['interval'][1]:.3f}",
                str(one["rounds"]),
                str(one["decision"]),
            )
            for name, one in found.items()
        ]
        head = ("case", "mean round trip, this over before", "95 %", "rounds", LIMIT)
        print(result.Table(title=f"This tree and {trees[0]}", head=head, rows=rows).text())
    return int(any(one["decision"] != "within" for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
