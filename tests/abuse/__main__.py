"""The campaign's command.

    python -m tests.abuse [--half 1|2] [--stages C,D1] [--quick] [--seed N] [--fresh]

Goes on where a run of the same commit was cut, unless `--fresh` or another seed is given. Ends with 1 where a
stage failed. The ledger is `build/abuse/ledger.jsonl`; a whole half writes `benchmarks/results/abuse.md`.
"""

from __future__ import annotations

import argparse
import pathlib
import secrets
import sys
from collections.abc import Sequence

from tests.abuse import machine, page
from tests.abuse.campaign import Run, say
from tests.abuse.ledger import Entry, Ledger, commit
from tests.abuse.stage import Stage
from tests.abuse.stages import STAGES

LEDGER = pathlib.Path("build", "abuse", "ledger.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    options.add_argument("--half", type=int, choices=(1, 2), help="default: both")
    options.add_argument("--stages", help="their letters, as C,D1; default: all of the half")
    options.add_argument(
        "--quick", action="store_true", help="the smaller sizes, and only what has one"
    )
    options.add_argument(
        "--seed", type=int, help="default: that of the run that goes on, or a new one"
    )
    options.add_argument("--fresh", action="store_true", help="begin anew")
    options.add_argument(
        "--page", type=pathlib.Path, default=page.PAGE, help="where the page is written"
    )
    options.add_argument("--keep-nothing", action="store_true", help="failing cases are not stored")
    given = options.parse_args(argv)
    ledger, at = Ledger(LEDGER), commit()
    seed = given.seed
    if seed is None and not given.fresh and not given.quick:
        seed = ledger.last_seed(commit=at, is_quick=False)
    if seed is None:
        seed = secrets.randbelow(1 << 32)
    done = {} if given.fresh else ledger.done(seed=seed, commit=at, is_quick=given.quick)
    run = Run(
        seed=seed, commit=at, is_quick=given.quick, ledger=ledger, keeps=not given.keep_nothing
    )
    say(f"seed {seed}, commit {at}{', quick' if given.quick else ''}")
    machine.stay_on_core(1)
    entries: list[Entry] = []
    for stage in _chosen(given.half, given.stages, is_quick=given.quick):
        known = done.get(stage.name)
        if known is not None and known.has_passed:
            say(f"== {stage.name}: passed before")
            entries.append(known)
        elif given.quick and stage.missing():
            say(f"== {stage.name}: left out, for there is no {', '.join(stage.missing())}")
        else:
            entries.append(run.stage(stage))
    is_whole = not given.quick and given.stages is None
    if is_whole or given.page != page.PAGE:
        page.write(ledger, STAGES, given.page)
    failed = [entry.stage for entry in entries if not entry.has_passed]
    say(f"{len(entries) - len(failed)} passed, {len(failed)} failed")
    if failed:
        say(f"seed {seed}: failed {', '.join(failed)}")
    return 1 if failed else 0


def _chosen(half: int | None, letters: str | None, *, is_quick: bool) -> list[Stage]:
    wanted = None if letters is None else letters.split(",")
    if wanted and (unknown := set(wanted) - {stage.name for stage in STAGES}):
        sys.exit(f"no stage {', '.join(sorted(unknown))}; there are {[s.name for s in STAGES]}")
    return [
        stage
        for stage in STAGES
        if (half is None or stage.half == half)
        and (wanted is None or stage.name in wanted)
        and (stage.is_quick or not is_quick or wanted is not None)
    ]


if __name__ == "__main__":
    sys.exit(main())
