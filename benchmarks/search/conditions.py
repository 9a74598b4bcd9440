"""Cases of `cases.yaml`, and the conditions under which each is replayed.

In: the file of cases and folders of `tune record`. Out: a `Case` for each objective of a recording,
and its `Condition`s by label. Replays nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence

import yaml

from tuner.errors import InvalidTable, UsageError
from tuner.lab import table_benchmark
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.replay_search import PredictionKind, ReplaySpec
from tuner.lab.tables import table_files
from tuner.lab.tables.table_evaluator import Perturbations

QUICK_PEERS = ("random", "tpe", "hill-climb")
SLOW_PEERS = ("optuna-gp", "smac", "skopt", "gpy", "ridge", "prediction", "epsilon-greedy")
PEERS = (*QUICK_PEERS, *SLOW_PEERS)
WRONG: tuple[PredictionKind, ...] = ("shuffled", "inverted", "constant", "misleading")
WHOLE_S, HALF_S = 120.0, 60.0
"""Time of the replays of our sampler and of quick peers, and of all others."""
MOST_TRIALS = 400
"""More than fit into that time."""
STUDIES_S = (15, 30, 60, 90, 120)
"""Times of the searches of whole studies."""
NULL_S = 30.0
FEWER_SEEDS = 20
"""Seeds of slow peers and of the row `wrong`, which compare means and medians."""
PAIRS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One objective on one recording."""

    name: str
    table: str
    objective: str
    half: str
    """`chosen`: settings were chosen on the recording; `judged`: it judges them."""

    @property
    def is_main(self) -> bool:
        """Whether it is the first case of its recording."""
        return self.name == self.table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One way to replay a case."""

    rows: tuple[str, ...]
    """Keys of the rows that need it."""
    sampler: str = "structured"
    max_s: float = HALF_S
    guess: PredictionKind = "estimate"
    is_null: bool = False
    studies_s: tuple[float, ...] = ()
    """Times at which studies end."""
    after: str = ""
    """Name of the case that is searched before."""
    most_seeds: int = sys.maxsize

    def spec(self, seeds: int, grounds: Mapping[str, PreparedTable]) -> ReplaySpec:
        """Return what is replayed."""
        return ReplaySpec(
            sampler=self.sampler,
            trials=MOST_TRIALS,
            max_s=self.max_s,
            seeds=tuple(range(seeds)),
            guess=self.guess,
            perturbations=Perturbations(is_null=self.is_null),
            pairs=PAIRS,
            studies_s=self.studies_s,
            after=grounds.get(self.after),
        )


def read_cases(path: pathlib.Path) -> list[Case]:
    """Read the cases; one that is not its recording's first has the objective in its name."""
    found: list[Case] = []
    for row in yaml.safe_load(path.read_text(encoding="utf-8")):
        is_first = all(one.table != row["table"] for one in found)
        name = row["table"] if is_first else f"{row['table']}-{row['objective']}"
        found.append(Case(name=name, **row))
    return found


def prepare(
    cases: Sequence[Case], tables: pathlib.Path
) -> tuple[dict[str, PreparedTable], list[str]]:
    """Prepare the cases that can be replayed, and say why the others are left out."""
    found: dict[str, PreparedTable] = {}
    left_out = []
    for case in cases:
        if not table_files.is_table(tables / case.table):
            left_out.append(f"{case.name}: not recorded yet")
            continue
        try:
            found[case.name] = table_benchmark.prepare_table(
                tables / case.table, {"objective": case.objective}
            )
        except (InvalidTable, UsageError) as error:
            left_out.append(f"{case.name}: {error}")
    return found, left_out


def conditions(
    case: Case, cases: Sequence[Case], grounds: Mapping[str, PreparedTable], peers: Collection[str]
) -> dict[str, Condition]:
    """Return the conditions of a case by label."""
    ground = grounds[case.name]
    found = {
        "structured": Condition(
            rows=("tried", "oracle", "harm", "peers", "gallery", "transfer", "wrong")
            + (("study", "verdicts") if case.is_main else ()),
            max_s=WHOLE_S,
            studies_s=STUDIES_S if case.is_main else (),
        ),
        "oracle": Condition(rows=("oracle", "study"), sampler="oracle", max_s=WHOLE_S),
    }
    for peer in peers if case.is_main else ():
        if peer != "prediction" or ground.is_predicted:
            is_quick = peer in QUICK_PEERS
            rows = ("peers", "gallery") if peer in {"random", "hill-climb"} else ("peers",)
            found[peer] = Condition(
                rows=rows,
                sampler=peer,
                max_s=WHOLE_S if is_quick else HALF_S,
                most_seeds=sys.maxsize if is_quick else FEWER_SEEDS,
            )
    if ground.is_predicted and case.is_main:
        fewer = Condition(rows=("wrong",), most_seeds=FEWER_SEEDS)
        found["gp"] = dataclasses.replace(fewer, sampler="gp")
        for kind in WRONG:
            found[f"wrong-{kind}"] = dataclasses.replace(fewer, guess=kind)
    if case.is_main:
        found["null"] = Condition(
            rows=("verdicts",), max_s=NULL_S, studies_s=(NULL_S,), is_null=True
        )
        for other in cases:
            if other.name in grounds and _is_other_load(ground, grounds[other.name], other):
                found[f"after-{other.name}"] = Condition(rows=("transfer",), after=other.name)
    return found


def _is_other_load(ground: PreparedTable, other: PreparedTable, case: Case) -> bool:
    own, head = ground.table.head, other.table.head
    is_same = (own.model, own.engine) == (head.model, head.engine)
    same_objective = ground.objective == other.objective
    return case.is_main and is_same and same_objective and own.concurrency != head.concurrency
