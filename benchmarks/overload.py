"""What is left of the goodput at twice the load that a server can sustain.

    python benchmarks/overload.py [--rounds 6] [--quick] [--write] [--json]

An open loop of Poisson arrivals with single images. Clients want their answer within an objective,
counted from when a request was due, and say so (`timeout`, somewhat less, as the way back takes time
too). Goodput is answers within the objective per second. The sustainable load is the highest rate at
which 99 % of the requests are answered in time, found by halving. Then rounds in turn at it, at
1.25 times and at twice as much: what is left is the goodput at twice the load over that at the load with
the best median, as the mean ratio of the rounds with its 95 % interval.

Also said: the longest time until a request was answered or refused, how many were not, and the
gateway's CPU time for a refusal beside that for an answer. Models: `busy`, 5 ms of CPU an item, and `resnet`.

Ends with 1 when the interval reaches below a model's target or a request hears nothing in time. Takes about
four minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import statistics
import sys

import numpy as np
import open_loop
import result
import server_process

from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.plan import PhasePlan
from tuner.measurement.comparison import ratio_interval
from tuner.values.interval import Interval

QUANTILE = 0.99
LOADS = (1.0, 1.25, 2.0)
MARGIN = 0.8
"""Of the objective is what a request gives the server."""
LONGEST = 1.5
"""Times the objective by when every request must have heard something, from when it was due."""
CLOSED = 32
LEAST_TIMEOUT_S = 1e-6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model, and what is asked of it."""

    name: str
    model: str
    objective_s: float
    target: float
    settings: dict[str, object]


CASES = (
    Case(
        name="busy",
        model=f"{open_loop.MODELS / 'busy.py'}:Model",
        objective_s=0.1,
        target=0.95,
        settings={"batching.max_size": 1},
    ),
    Case(
        name="resnet",
        model="resnet",
        objective_s=0.1,
        target=0.85,
        settings={"batching.max_size": 16},
    ),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase."""

    load: float
    seen: open_loop.Seen

    def goodput_per_s(self, objective_s: float) -> float:
        """Answers in time."""
        return self.seen.answered(objective_s) / self.seen.seconds

    @property
    def refused(self) -> int:
        """Requests that were told no."""
        return int(np.isin(self.seen.status, (429, 503, 504)).sum())

    @property
    def unheard(self) -> int:
        """Requests that were neither answered nor refused."""
        return len(self.seen.status) - self.seen.answered() - self.refused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One case's phases."""

    case: Case
    sustained_per_s: float
    answer_us: float
    """Gateway CPU of an answer."""
    refusal_us: float
    phases: tuple[Phase, ...]

    def at(self, load: float) -> list[Phase]:
        """The phases at one load."""
        return [phase for phase in self.phases if phase.load == load]

    def goodput_per_s(self, load: float) -> float:
        """Median of the rounds."""
        return statistics.median(p.goodput_per_s(self.case.objective_s) for p in self.at(load))

    @property
    def kept(self) -> tuple[float, Interval]:
        """Goodput at the highest load over that at its peak, round by round: mean ratio, 95 % interval."""
        peak = max(LOADS, key=self.goodput_per_s)
        most, best = (
            [phase.goodput_per_s(self.case.objective_s) for phase in self.at(load)]
            for load in (LOADS[-1], peak)
        )
        return ratio_interval(most, best)

    @property
    def longest_s(self) -> float:
        """Until the last request heard something."""
        return max(float(phase.seen.took_s.max()) for phase in self.phases)

    @property
    def unheard(self) -> int:
        """Over all phases."""
        return sum(phase.unheard for phase in self.phases)

    @property
    def is_met(self) -> bool:
        """Whether it keeps enough, and everybody hears in time."""
        is_heard = not self.unheard and self.longest_s <= LONGEST * self.case.objective_s
        _, interval = self.kept
        return interval.low is not None and interval.low >= self.case.target and is_heard

    def kept_in_words(self) -> str:
        """With its interval."""
        share, ends = self.kept
        return f"{share:.1%} [{ends.low:.1%}, {ends.high:.1%}]"


def cpu_s(pid: int) -> float:
    """User and kernel time of one process, without its children."""
    after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def cost_us(
    generator: LoadGenerator,
    where: server_process.Served,
    case: Case,
    *,
    timeout_s: float | None,
    seconds: float,
) -> float:
    """Gateway CPU of a request in a closed loop; where its time is over when it comes, of a refusal."""
    generator.set_payloads(open_loop.images(where.port, case.name, timeout_s=timeout_s))
    before_s = cpu_s(where.pid)
    found = generator.run(
        PhasePlan(host="127.0.0.1", port=where.port, concurrency=CLOSED, seconds=seconds)
    )
    return 1e6 * (cpu_s(where.pid) - before_s) / len(found.records)


def measured(generator: LoadGenerator, case: Case, options: argparse.Namespace) -> Found:
    """Find the sustainable load, then go beyond it."""
    with server_process.served(case.model, case.settings) as where:
        answer_us, refusal_us = (
            cost_us(generator, where, case, timeout_s=timeout_s, seconds=options.seconds)
            for timeout_s in (None, LEAST_TIMEOUT_S)
        )
        generator.set_payloads(
            open_loop.images(where.port, case.name, timeout_s=MARGIN * case.objective_s)
        )
        guess = open_loop.closed(generator, where.port, CLOSED, options.seconds)

        def holds(rate: float) -> bool:
            seen = open_loop.tried(case.name, generator, where.port, rate, options.seconds)
            if seen is None:
                return False
            share = seen.answered(case.objective_s) / len(seen.status)
            result.say(f"{case.name}: {rate:,.0f}/s, {100 * share:.2f} % in time")
            return share >= QUANTILE

        sustained = open_loop.highest(holds, 0.5 * guess, guess, steps=options.steps)
        phases = []
        for number in range(options.rounds):
            for load in LOADS if number % 2 == 0 else LOADS[::-1]:
                seen = open_loop.drive(
                    generator,
                    where.port,
                    load * sustained,
                    2 * options.seconds,
                    warmup_s=0.0,
                    seed=number,
                )
                phases.append(Phase(load=load, seen=seen))
                result.say(
                    f"{case.name}: x {load:g}, {phases[-1].goodput_per_s(case.objective_s):,.0f}/s in "
                    f"time, {phases[-1].refused} refused, longest {1e3 * seen.took_s.max():.0f} ms"
                )
    return Found(
        case=case,
        sustained_per_s=sustained,
        answer_us=answer_us,
        refusal_us=refusal_us,
        phases=tuple(phases),
    )


def goodputs(found: list[Found]) -> result.Table:
    """What each load gave."""
    rows = []
    for one in found:
        for load in LOADS:
            refused = sum(phase.refused for phase in one.at(load))
            asked = sum(len(phase.seen.status) for phase in one.at(load))
            longest_s = max(float(phase.seen.took_s.max()) for phase in one.at(load))
            rows.append(
                (
                    one.case.name,
                    f"{load:g} x",
                    f"{load * one.sustained_per_s:,.0f}",
                    f"{one.goodput_per_s(load):,.0f}",
                    f"{100 * refused / asked:.1f} %",
                    f"{1e3 * longest_s:.0f}",
                )
            )
    return result.Table(
        title="Goodput by load, medians of the rounds",
        head=("model", "load", "requests/s", "in time /s", "refused", "longest ms"),
        rows=rows,
    )


def costs(found: list[Found]) -> result.Table:
    """What is left, and what a refusal costs."""
    rows = [
        (
            one.case.name,
            f"{1e3 * one.case.objective_s:g}",
            one.kept_in_words(),
            f"{100 * one.case.target:g} %",
            str(one.unheard),
            f"{one.answer_us:.0f}",
            f"{one.refusal_us:.0f}",
        )
        for one in found
    ]
    return result.Table(
        title="What is kept, and the gateway's CPU time",
        head=(
            "model",
            "objective ms",
            "kept",
            "target",
            "unheard",
            "us an answer",
            "us a refusal",
        ),
        rows=rows,
    )


def concluded(found: list[Found]) -> result.Result:
    """Tables and verdict."""
    return result.Result(
        name="overload",
        question="How much of its goodput does a server keep at twice the load that it can sustain?",
        target=", ".join(f"{100 * one.case.target:g} % for {one.case.name}" for one in found)
        + f", by the 95 % interval of the rounds; every request answered or refused within {LONGEST:g} x the objective",
        verdict="; ".join(
            f"{one.case.name} keeps {one.kept_in_words()}, {one.unheard} requests heard nothing, the last "
            f"heard after {1e3 * one.longest_s:.0f} ms"
            for one in found
        ),
        is_met=all(one.is_met for one in found),
        tables=(goodputs(found), costs(found)),
        figures={
            one.case.name: {
                "sustained_per_s": one.sustained_per_s,
                "goodput_per_s": {load: one.goodput_per_s(load) for load in LOADS},
                "kept": [one.kept[0], dataclasses.asdict(one.kept[1])],
                "longest_s": one.longest_s,
                "unheard": one.unheard,
                "answer_us": one.answer_us,
                "refusal_us": one.refusal_us,
            }
            for one in found
        },
        packages=("onnxruntime",),
    )


def main() -> int:
    """Overload each model."""
    parser = argparse.ArgumentParser(description="goodput at twice the sustainable load")
    parser.add_argument("--rounds", type=int, default=6, help="of each load (default 6)")
    parser.add_argument("--steps", type=int, default=4, help="halvings of the search (default 4)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a search phase (default 2)")
    parser.add_argument("--model", choices=[case.name for case in CASES], help="only this one")
    options = result.parsed(parser, rounds=2, steps=1, seconds=0.6)
    with LoadGenerator() as generator:
        found = [
            measured(generator, case, options)
            for case in CASES
            if options.model in {None, case.name}
        ]
    return result.conclude(concluded(found), options)


if __name__ == "__main__":
    sys.exit(main())
