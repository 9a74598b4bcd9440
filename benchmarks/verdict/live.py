"""How often the intervals of real comparisons hold the truth: here and now, and hours later.

    python benchmarks/verdict/live.py FILE [--verdicts 4] [--max-time 40]
    python benchmarks/verdict/live.py FILE --verdicts 0

The first form is a session: every pair of settings of two models is compared so many times by `tune ab`, in turn, and
what came out is added to FILE, a line of JSON each. Both print what all sessions in FILE say; run it again hours
later. The truth of a pair in a session is the mean logarithm of its comparisons there: for one of the same session of
the others. Sessions count as apart from `APART_S` on.

- *here and now*: whether a comparison's interval, as wide as both together, holds what the others of its session say.
- *on another day*: whether its wide interval holds what a session hours apart says.
- *tau*: how far ratios moved from session to session beyond what their comparisons explain.

Ends with 1 where the upper end of a coverage's interval lies under `COVERED`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import ab_answers
import result

from tuner.measurement.comparison import SESSION_SD

CONCURRENCY = 20
PAIRS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "no batches": ({"batching": {"max_size": 8}}, {"batching": {"max_size": 1}}),
    "two replicas": ({"replica": {"count": 1}}, {"replica": {"count": 2}}),
    "a timeout": ({"batching": {"timeout_us": 0}}, {"batching": {"timeout_us": 4000}}),
    "a larger batch": ({"batching": {"max_size": 16}}, {"batching": {"max_size": 32}}),
}
MODELS = ("resnet", "opennmt")
APART_S = 7200.0
COVERED = 0.93


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One comparison of a pair in a session."""

    session: str
    at_s: float
    """When the session began, by the clock."""
    model: str
    pair: str
    log: float
    """Logarithm of B over A."""
    interval: tuple[float, float]
    """The same of its ends, here and now."""
    between_session_interval: tuple[float, float]
    rounds: int
    seconds: float

    @property
    def half(self) -> float:
        """Half the width here and now."""
        return (self.interval[1] - self.interval[0]) / 2


def compare(model: str, pair: str, max_time_s: float) -> Mapping[str, Any]:
    """Compare a pair by `tune ab`; returns its answer.

    Raises:
        SystemExit: it could not be measured.
    """
    answer, _ = ab_answers.ask(
        PAIRS[pair], model=model, concurrency=CONCURRENCY, max_time_s=max_time_s
    )
    return answer


def session(file: pathlib.Path, verdicts: int, max_time_s: float) -> None:
    """Compare every pair so many times, and add what came out to the file."""
    at_s = time.time()
    name = dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat(timespec="seconds")
    with file.open("a", encoding="utf-8") as out:
        for _ in range(verdicts):
            for model in MODELS:
                for pair in PAIRS:
                    said = compare(model, pair, max_time_s)
                    found = Found(
                        session=name,
                        at_s=at_s,
                        model=model,
                        pair=pair,
                        log=math.log(said["ratio"]),
                        interval=_logs(said["interval"]),
                        between_session_interval=_logs(said["between_session_interval"]),
                        rounds=said["rounds"],
                        seconds=said["seconds"],
                    )
                    out.write(json.dumps(dataclasses.asdict(found)) + "\n")
                    out.flush()


def _logs(ends: Sequence[float]) -> tuple[float, float]:
    low, high = map(math.log, ends)
    return low, high


def read(file: pathlib.Path) -> list[Found]:
    """All that is in the file."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [
        Found(
            **{
                **row,
                "interval": tuple(row["interval"]),
                "between_session_interval": tuple(row["between_session_interval"]),
            }
        )
        for row in rows
    ]


def is_same_as(one: Found) -> Callable[[Found], bool]:
    """Whether another one compared the same."""
    return lambda other: (other.model, other.pair) == (one.model, one.pair)


def here_and_now(found: Sequence[Found]) -> list[bool]:
    """Of each comparison that is not alone, whether its interval holds what the others of its session say."""
    held = []
    for one in found:
        others = [
            other
            for other in filter(is_same_as(one), found)
            if other.session == one.session and other is not one
        ]
        if others:
            truth = float(np.mean([other.log for other in others]))
            own = math.sqrt(sum(other.half**2 for other in others)) / len(others)
            low, high = one.interval
            width = math.hypot(one.half, own) / one.half
            held.append(
                one.log - width * (one.log - low) <= truth <= one.log + width * (high - one.log)
            )
    return held


def on_another_day(found: Sequence[Found]) -> list[bool]:
    """Of each comparison and each session apart, whether the wide interval holds what that one says."""
    held = []
    for one in found:
        apart: dict[str, list[float]] = {}
        for other in filter(is_same_as(one), found):
            if abs(other.at_s - one.at_s) >= APART_S:
                apart.setdefault(other.session, []).append(other.log)
        low, high = one.between_session_interval
        held += [low <= float(np.mean(logs)) <= high for logs in apart.values()]
    return held


def session_sd(found: Sequence[Found]) -> float:
    """Standard deviation of ratios between sessions that are apart, beyond what their comparisons explain."""
    squares: list[float] = []
    for model, pair in {(one.model, one.pair) for one in found}:
        own = [one for one in found if (one.model, one.pair) == (model, pair)]
        begins = {one.session: one.at_s for one in own}
        logs = {name: [one.log for one in own if one.session == name] for name in begins}
        for first, at_s in begins.items():
            for second, later_s in begins.items():
                sides = logs[first], logs[second]
                if later_s - at_s < APART_S or min(map(len, sides)) < 2:
                    continue
                noise = sum(float(np.var(side, ddof=1)) / len(side) for side in sides)
                squares.append(float(np.mean(sides[1]) - np.mean(sides[0])) ** 2 - noise)
    return math.sqrt(max(0.0, float(np.mean(squares)))) if squares else math.nan


def exact(hits: int, count: int, alpha: float = 0.05) -> tuple[float, float]:
    """Interval of a share (Clopper and Pearson, Biometrika 26:404, 1934)."""
    low = float(special.betaincinv(hits, count - hits + 1, alpha / 2)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, count - hits, 1 - alpha / 2)) if hits < count else 1.0
    return low, high


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("file", type=pathlib.Path, help="what sessions add to")
    options.add_argument("--verdicts", type=int, default=4, help="of each pair in this session")
    options.add_argument("--max-time", type=float, default=40.0, metavar="S", help="of each")
    given = options.parse_args(argv)
    if given.verdicts:
        session(given.file, given.verdicts, given.max_time)
    found = read(given.file)
    rows = []
    for model, pair in sorted({(one.model, one.pair) for one in found}):
        own = [one for one in found if (one.model, one.pair) == (model, pair)]
        sessions = sorted({one.session for one in own})
        means = [np.mean([one.log for one in own if one.session == name]) for name in sessions]
        rows.append(
            (
                model,
                pair,
                ", ".join(f"x {math.exp(mean):.3f}" for mean in means),
                f"{100 * np.median([one.half for one in own]):.1f}",
                str(len(own)),
                f"{np.median([one.seconds for one in own]):.0f}",
            )
        )
    head = ("model", "pair", "B over A by session", "half width, %", "comparisons", "s each")
    print(result.Table(title="Pairs", head=head, rows=rows, left=3).text(), end="\n\n")
    lines, is_met = [], True
    for what, held in (
        ("here and now", here_and_now(found)),
        ("on another day", on_another_day(found)),
    ):
        if not held:
            continue
        low, high = exact(sum(held), len(held))
        is_met = is_met and high >= COVERED
        lines.append(
            (what, f"{sum(held)} of {len(held)}", f"{100 * low:.1f} to {100 * high:.1f} %")
        )
    head = ("interval", "holds the truth", "95 % (Clopper and Pearson)")
    print(result.Table(title="Coverage", head=head, rows=lines).text(), end="\n\n")
    tau = session_sd(found)
    told = "not known yet" if math.isnan(tau) else f"{100 * tau:.1f} % found"
    print(f"tau: {told}, {100 * SESSION_SD:.1f} % assumed")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
