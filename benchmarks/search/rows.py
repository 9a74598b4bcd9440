"""What search must reach, row by row: the target, what the replays showed, and whether that is enough.

In: what `measure.py` keeps. Out: `Row`s of one table, and of all together. A figure that the data
does not hold makes a row that says so. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tuner.lab.tables import scoring
from tuner.measurement import noninferiority
from tuner.metrics.benchmark import MIN_UNITS, NonInferiority

Verdict = Literal["reached", "MISSED", "reported", "not measured"]
"""Reported: the row has no target, or the data cannot tell."""

GOALS = {"gp": (15, 35), "structured": (10, 25)}
"""Median and 90th percentile of trials until the recommendation is within 3 %."""
MOST_OF_RANDOM = 3
"""The exact median of random search is to be at least so many times the own one."""
NAMED_PEERS = ("tpe", "optuna-gp", "smac", "skopt", "random")
"""Those that the target names; the others are shown beside them."""
BUDGETS = (15, 30, 50)
RENAMED = {"guess": "prediction"}
"""Samplers in older data, and their names today."""
RESAMPLES, LEAST_SEEDS = 2000, 10
"""Of the bootstrap, and seeds below which it tells nothing."""
WRONG = {
    "shuffled": "of other configurations",
    "inverted": "turned over",
    "constant": "the same for all",
    "twice": "of a machine twice as fast",
}
MOST_WRONG = 1.25
MOST_NOISE = 1.3
FREE_FAILURES = 3
MOST_FAILING = 0.05
FALSE_BETTER = 38 / 1000
LIVE_STUDIES = 20
COVERED = (0.93, 0.97)
MOST_OLD_LOSS = 0.03
LEAST_SAVED = 0.25
EQUAL_REGRET = 0.01
TAIL = "no: a tail needs its requests"
"""Why trials of a p99 are not ended early."""
RACED_TRIALS = 30
"""After which time and regret of racing are compared."""
MOST_OWN_S = 0.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    key: str
    """Names the same row of every table."""
    what: str
    target: str
    measured: str
    verdict: Verdict
    losses: tuple[str, ...] = ()
    """What was not shown, one by one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedTable:
    """Kept replays of one table."""

    name: str
    facts: Mapping[str, Any]
    conditions: Mapping[str, Mapping[str, Any]]
    """By label."""

    def trials(self, label: str, share: str) -> list[float] | None:
        """Trials of each seed until within a share, infinite where never; None where it was not measured."""
        found = self.conditions.get(label)
        if found is None:
            return None
        return [math.inf if value is None else value for value in found["trials_to"][share]]

    def pair(
        self, label: str, other: str, share: str
    ) -> tuple[Sequence[float], Sequence[float]] | None:
        """Trials of each seed of two conditions; None where one was not measured, or was shorter.

        Until a search has reached a share *for good* depends on how long one looks.
        """
        sides = self.trials(label, share), self.trials(other, share)
        if sides[0] is None or sides[1] is None:
            return None
        if self.conditions[label]["trials"] != self.conditions[other]["trials"]:
            return None
        return sides[0], sides[1]

    def median(self, label: str, share: str) -> float | None:
        """Trials that half of the seeds need at most, infinite where fewer than half get there."""
        found = self.trials(label, share)
        return None if found is None else rank_of(found, 0.5)

    def regrets(
        self, label: str, budget: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
        """Of each seed after so many trials; None where it was not measured."""
        found = self.conditions.get(label, {}).get("regrets", {}).get(str(budget))
        return None if found is None else np.array(found, dtype=float)

    @property
    def peers(self) -> tuple[str, ...]:
        """Samplers of others that were measured, those that the target names first."""
        every = [
            label
            for label, found in self.conditions.items()
            if label == found["sampler"] and label not in GOALS
        ]
        rank = {name: place for place, name in enumerate(NAMED_PEERS)}
        return tuple(sorted(every, key=lambda name: (rank.get(name, len(rank)), name)))


def read(folder: pathlib.Path) -> tuple[list[ReplayedTable], dict[str, Any]]:
    """All tables by name, and what is of none of them, by the name of its file."""
    tables = []
    for path in sorted(folder.glob("*/table.json")):
        conditions = {
            RENAMED.get(one.stem, one.stem): _condition(one)
            for one in sorted(path.parent.glob("*.json"))
            if one != path
        }
        facts = json.loads(path.read_text(encoding="utf-8"))
        tables.append(ReplayedTable(name=path.parent.name, facts=facts, conditions=conditions))
    others = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }
    return tables, others


def _condition(path: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names = {key: RENAMED[found[key]] for key in ("label", "sampler") if found.get(key) in RENAMED}
    return found | names


def of_table(table: ReplayedTable) -> list[Row]:
    """All rows of one table."""
    rows = [within(table, sampler) for sampler in GOALS]
    rows += [against_random(table, sampler) for sampler in GOALS]
    rows += [within_one(table, sampler) for sampler in GOALS]
    rows += [noninferior(table, sampler) for sampler in GOALS]
    rows += [noise(table, sampler) for sampler in GOALS]
    rows += [failures(table, sampler) for sampler in GOALS]
    rows += second_level(table)
    rows += [wrong(table, kind) for kind in WRONG]
    rows += [own_prediction(table), racing(table), lengths(table), simulator(table)]
    return rows


def of_all(
    tables: Sequence[ReplayedTable], others: Mapping[str, Any], fixed: Collection[str] = ()
) -> list[Row]:
    """Rows of all tables together.

    Args:
        tables: all of them.
        others: what was kept of none of them.
        fixed: names of those on which defaults were chosen.
    """
    chosen_on = [one for one in tables if one.name in fixed]
    judging = [one for one in tables if one.name not in fixed]
    return [
        null(tables),
        live_null(others.get("live-null")),
        coverage(tables, "coverage-raw"),
        coverage(tables, "coverage"),
        *(over_tables(tables, sampler) for sampler in GOALS),
        *(
            over_tables(some, sampler, which)
            for some, which in ((chosen_on, "on which defaults were chosen"), (judging, "others"))
            if len(some) > 1 and len(some) < len(tables)
            for sampler in GOALS
        ),
        own_time(others.get("timing")),
    ]


def within(table: ReplayedTable, sampler: str) -> Row:
    """Trials to 3 %."""
    goal = GOALS[sampler]
    found = table.trials(sampler, "0.03")
    counted = " (profiling counted)" if sampler == "structured" else ""
    measured, verdict = "", "not measured"
    if found is not None:
        median, p90 = rank_of(found, 0.5), rank_of(found, 0.9)
        most = table.conditions[sampler]["trials"]
        measured = f"{_count(median, most)} / {_count(p90, most)}"
        verdict = "reached" if median <= goal[0] and p90 <= goal[1] else "MISSED"
    return Row(
        key=f"{sampler}: within 3 %",
        what=f"`{sampler}`: trials to 3 %, median / 90th percentile{counted}",
        target=f"{goal[0]} / {goal[1]}",
        measured=measured,
        verdict=_verdict(verdict),
    )


def against_random(table: ReplayedTable, sampler: str) -> Row:
    """Median of the trials to 3 %, against the exact one of a random search that is told the truth."""
    random = table.facts["within"]["0.03"]["random_median"]
    median = table.median(sampler, "0.03")
    measured, verdict = "", "not measured"
    if median is not None:
        most = table.conditions[sampler]["trials"]
        measured = f"{_count(median, most)} over {random}"
        verdict = "reached" if MOST_OF_RANDOM * median <= random else "MISSED"
    return Row(
        key=f"{sampler}: against random",
        what=f"`{sampler}`: median of trials to 3 %, over that of a random search that is told the truth",
        target="at most a third",
        measured=measured,
        verdict=_verdict(verdict),
    )


def within_one(table: ReplayedTable, sampler: str) -> Row:
    """Trials to 1 %, where the truth is known so well."""
    found = table.trials(sampler, "0.01")
    facts = table.facts["within"]["0.01"]
    error = table.facts["optimum_se"]
    row = Row(
        key=f"{sampler}: within 1 %",
        what=f"`{sampler}`: trials to 1 %, median / 90th percentile",
        target="reported",
        measured="",
        verdict="not measured",
    )
    if 2 * error > 0.01:
        text = f"cannot be told: twice the optimum's error, {_percent(error)}, is more than 1 %"
        return dataclasses.replace(row, measured=text, verdict="reported")
    if found is None:
        return row
    most = table.conditions[sampler]["trials"]
    ends = [_count(rank_of(found, share), most) for share in (0.5, 0.9)]
    text = f"{ends[0]} / {ends[1]} (random {facts['random_median']})"
    return dataclasses.replace(row, measured=text, verdict="reported")


def comparisons(
    table: ReplayedTable, sampler: str, peers: Sequence[str]
) -> tuple[NonInferiority, ...]:
    """Against every one of the peers after every budget, paired by seed, corrected by Holm."""
    found = []
    for peer, budget in itertools.product(peers, BUDGETS):
        sides = table.regrets(sampler, budget), table.regrets(peer, budget)
        if sides[0] is None or sides[1] is None:
            continue
        count = min(map(len, (sides[0], sides[1])))
        found.append((peer, budget, sides[0][:count] - sides[1][:count]))
    return noninferiority.judge(found) if found else ()


def noninferior(table: ReplayedTable, sampler: str) -> Row:
    """Against the peers that the target names."""
    judged = comparisons(table, sampler, NAMED_PEERS)
    measured, verdict, losses = _standings(judged)
    return Row(
        key=f"{sampler}: non-inferior",
        what=f"`{sampler}` not worse than {', '.join(NAMED_PEERS)} at 15, 30, 50 trials",
        target="all, by 1 point of mean regret (95 %, paired, Holm)",
        measured=measured,
        verdict=verdict,
        losses=losses,
    )


def over_tables(tables: Sequence[ReplayedTable], sampler: str, which: str = "") -> Row:
    """The same with the table as the unit.

    Args:
        tables: those that count.
        sampler: ours.
        which: says which tables they are; empty: all.
    """
    differences: dict[tuple[str, int], list[float]] = {}
    for table in tables:
        for one in comparisons(table, sampler, NAMED_PEERS):
            differences.setdefault((one.peer, one.budget), []).append(one.difference)
    judged = (
        noninferiority.judge(
            [(peer, budget, np.array(each)) for (peer, budget), each in differences.items()]
        )
        if len(tables) > 1 and differences
        else ()
    )
    measured, verdict, losses = _standings(judged)
    if judged and len(tables) < MIN_UNITS:
        lower = sum(one.difference < 0 for one in judged)
        measured = f"nothing can be shown of fewer than {MIN_UNITS}; mean lower in {lower} of {len(judged)}"
    return Row(
        key=f"{sampler}: non-inferior over {which or 'tables'}",
        what=f"`{sampler}` not worse than the peers, tables being the units"
        + (f": {len(tables)} {which}" if which else ""),
        target="all, by 1 point of mean regret (95 %, Holm)",
        measured=measured,
        verdict=verdict if not which or verdict == "not measured" else "reported",
        losses=() if which else losses,
    )


def noise(table: ReplayedTable, sampler: str) -> Row:
    """Trials to 5 % with a launch noise of 5 % more, over those without."""
    return _ratio_row(
        key=f"{sampler}: noise",
        what=f"`{sampler}`, 5 % noise per launch: trials to 5 %, over those without",
        limit=MOST_NOISE,
        sides=table.pair(f"{sampler}-noise", sampler, "0.05"),
    )


def failures(table: ReplayedTable, sampler: str) -> Row:
    """How often trials fail that come after the third failure."""
    measured, verdict = "", "not measured"
    found = table.conditions.get(f"{sampler}-walls")
    if found is not None:
        later = further = runs = 0
        for lost in found["lost"]:
            if len(lost) < FREE_FAILURES:
                continue
            runs += 1
            further += found["trials"] - 1 - lost[FREE_FAILURES - 1]
            later += len(lost) - FREE_FAILURES
        if further:
            share = later / further
            measured = f"{_percent(share)} of {further:,} ({runs} of {found['seeds']} searches)"
            verdict = "reached" if share <= MOST_FAILING else "MISSED"
        else:
            measured = f"no search of {found['seeds']} had three failures"
            verdict = "reported"
    return Row(
        key=f"{sampler}: failures",
        what=f"`{sampler}`, memory walls: failures among the trials after the third one",
        target="at most 5 %",
        measured=measured,
        verdict=_verdict(verdict),
    )


def second_level(table: ReplayedTable) -> list[Row]:
    """Trials of a search that has searched another load before, over those of a fresh one."""
    rows = []
    for label, found in table.conditions.items():
        if not label.startswith("after-"):
            continue
        other = label.removeprefix("after-")
        loss = found.get("old_best_regret")
        sides = table.pair(label, "structured", "0.03")
        row = _ratio_row(
            key="second level",
            what=f"after a search on {other}: trials to 3 %, over those of a fresh search",
            limit=0.5,
            sides=sides,
        )
        regrets = table.regrets(label, 30)
        reached = None if regrets is None else float(regrets.mean())
        target = "at most 0.5, and better than the old best"
        old = "is no configuration here" if loss is None else f"loses {_percent(loss)}"
        measured = f"{row.measured}; the old best {old}"
        if reached is not None:
            measured += f", the search {_percent(reached)} after 30"
        verdict = row.verdict
        if verdict == "reached" and loss is not None and reached is not None and reached >= loss:
            verdict = "MISSED"
        if loss is not None and loss <= MOST_OLD_LOSS:
            target, verdict = "none: the old best loses at most 3 % here", "reported"
        rows.append(dataclasses.replace(row, target=target, measured=measured, verdict=verdict))
    return rows


def wrong(table: ReplayedTable, kind: str) -> Row:
    """Trials with a wrong prediction over those of the plain process."""
    row = _ratio_row(
        key=f"wrong simulator: {kind}",
        what=f"prediction {WRONG[kind]}: trials to 3 %, over those of `gp`",
        limit=MOST_WRONG,
        sides=table.pair(f"structured-{kind}", "gp", "0.03"),
    )
    if row.verdict == "not measured" and table.facts["simulator"] is None:
        return dataclasses.replace(
            row,
            measured="no simulator: another engine, the plain process searches",
            verdict="reported",
        )
    return row


def own_prediction(table: ReplayedTable) -> Row:
    """Trials with the prediction as it is over those of the plain process."""
    row = _ratio_row(
        key="its own prediction",
        what="the prediction as it is: trials to 3 %, over those of `gp`",
        limit=1.0,
        sides=table.pair("structured", "gp", "0.03"),
    )
    measured = row.measured
    for one in comparisons(table, "structured", ["gp"]):
        measured += f"; regret at {one.budget} {_points(one.difference)} points"
    if table.facts["simulator"] is None:
        measured = "no simulator: the plain process searches"
    return dataclasses.replace(row, target="reported", measured=measured, verdict="reported")


def lengths(table: ReplayedTable) -> Row:
    """What fixed lengths of a trial lose against whole ones, and what time they save."""
    whole = _time_spent(table, "structured")
    told = []
    for label in sorted(table.conditions):
        spent = _time_spent(table, label)
        if not label.startswith("blocks-") or spent is None or whole is None:
            continue
        sides = table.regrets(label, RACED_TRIALS), table.regrets("structured", RACED_TRIALS)
        assert sides[0] is not None, "it was spent"
        assert sides[1] is not None, "it was spent"
        count = min(len(sides[0]), len(sides[1]))
        lost = noninferiority.bound_mean(sides[0][:count] - sides[1][:count], EQUAL_REGRET)
        told.append(
            f"{label.removeprefix('blocks-')}: {_points(lost.mean)} points, bound "
            f"{_points(lost.upper)}, {_against(spent[0], whole[0])} whole ones"
        )
    raced = table.facts["objective"] != "p99"
    return Row(
        key="lengths",
        what="trials of so many blocks of 0.5 s, against whole ones: regret at 30, time",
        target="reported",
        measured="; ".join(told) if raced else TAIL,
        verdict="reported" if told or not raced else "not measured",
    )


def racing(table: ReplayedTable) -> Row:
    """Time of racing trials against the best fixed length, after the same number of them."""
    mine = _time_spent(table, "raced")
    lengths = {"whole trials": "structured"}
    lengths |= {
        f"{label.removeprefix('blocks-')} block(s)": label
        for label in table.conditions
        if label.startswith("blocks-")
    }
    fixed = {
        length: spent
        for length, label in lengths.items()
        if (spent := _time_spent(table, label)) is not None
    }
    measured, verdict = "", "not measured"
    if table.facts["objective"] == "p99":
        measured, verdict = TAIL, "reported"
    elif mine is not None and fixed:
        # The best length is the one with the least time among those whose regret is that of the best.
        least = min(regret for _, regret in fixed.values())
        good = {s: one for s, one in fixed.items() if one[1] <= least + EQUAL_REGRET}
        length = min(good, key=lambda blocks: good[blocks][0])
        saved = 1 - mine[0] / good[length][0]
        longest = max(one[0] for one in fixed.values())
        measured = (
            f"{_against(mine[0], good[length][0])} {length}, {_against(mine[0], longest)} the longest; "
            f"regret {_percent(mine[1])} against {_percent(good[length][1])}"
        )
        is_reached = saved >= LEAST_SAVED and mine[1] <= good[length][1] + EQUAL_REGRET
        verdict = "reached" if is_reached else "MISSED"
    return Row(
        key="racing",
        what="racing: measurement time against the best fixed length of a trial",
        target="at least 25 % less, regret at most 1 point more",
        measured=measured,
        verdict=_verdict(verdict),
    )


def simulator(table: ReplayedTable) -> Row:
    """How good the prediction is."""
    found = table.facts["simulator"]
    if found is None:
        measured = "no simulator"
    else:
        regret = found["argmin_regret"]
        measured = (
            f"rank correlation {found['rank_correlation']:.2f}, error of the logarithm "
            f"{_percent(found['log_rmse'])}, its best loses "
            f"{'everything: it does not work' if regret is None else _percent(regret)}"
        )
    return Row(
        key="simulator",
        what="the prediction against the truth",
        target="reported",
        measured=measured,
        verdict="reported",
    )


def null(tables: Sequence[ReplayedTable]) -> Row:
    """False "better" where all configurations are alike."""
    verdicts = _verdicts(tables, "null")
    measured, verdict = "", "not measured"
    if verdicts:
        better = sum(one["outcome"] == "better" for one in verdicts)
        worse = sum(one["outcome"] == "worse" for one in verdicts)
        measured = f"{better} of {len(verdicts):,} (and {worse} false worse)"
        most = math.floor(FALSE_BETTER * len(verdicts) + 1e-9)
        verdict = "reached" if better <= most else "MISSED"
    return Row(
        key="null",
        what="null tables, every configuration drawing from one: studies that end with a false *better*",
        target="at most 38 of 1,000",
        measured=measured,
        verdict=_verdict(verdict),
    )


def live_null(found: Mapping[str, Any] | None) -> Row:
    """The same, served: studies whose configurations are all the same."""
    measured, verdict = "", "not measured"
    if found is not None:
        outcomes = [one["outcome"] for one in found["studies"]]
        measured = f"{len(outcomes)}: " + ", ".join(
            f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))
        )
        verdict = "reported" if len(outcomes) >= LIVE_STUDIES else "not measured"
    return Row(
        key="live null",
        what="live studies of a space whose knob does nothing",
        target=f"{LIVE_STUDIES} shown; by chance one in forty ends *better*",
        measured=measured,
        verdict=_verdict(verdict),
    )


def coverage(tables: Sequence[ReplayedTable], label: str) -> Row:
    """How often the interval of the gain holds the true one."""
    is_known = label == "coverage"
    every = _verdicts(tables, label)
    verdicts = [one for one in every if one["covers"] is not None]
    measured, verdict = "", "not measured"
    losses: tuple[str, ...] = ()
    if verdicts:
        share = statistics.fmean(one["covers"] for one in verdicts)
        measured = f"{_percent(share)} of {len(verdicts):,}"
        if len(every) > len(verdicts):
            measured += f" ({len(every) - len(verdicts)} more gave no interval)"
        verdict = "reached" if COVERED[0] <= share <= COVERED[1] else "MISSED"
        if is_known:
            verdict = "reported"
        else:
            losses = tuple(_coverage(table, label) for table in tables)
    what = (
        "the same where each launch is drawn anew about a truth that is known exactly"
        if is_known
        else "the gain's interval holds the gain by the held-out launches"
    )
    return Row(
        key="coverage of a known truth" if is_known else "coverage",
        what=what,
        target="reported" if is_known else "93 to 97 % of 1,000",
        measured=measured,
        verdict=_verdict(verdict),
        losses=losses if verdict == "MISSED" else (),
    )


def _coverage(table: ReplayedTable, label: str) -> str:
    """The coverage on one table."""
    found = [one["covers"] for one in _verdicts([table], label) if one["covers"] is not None]
    share = _percent(statistics.fmean(found)) if found else "not known"
    return f"{table.name} {share}"


def own_time(found: Mapping[str, Any] | None) -> Row:
    """The samplers' own time."""
    measured, verdict = "", "not measured"
    if found is not None:
        measured = ", ".join(
            f"{sampler} {seconds:.2f} s" for sampler, seconds in found["seconds"].items()
        )
        verdict = "reached" if max(found["seconds"].values()) < MOST_OWN_S else "MISSED"
    return Row(
        key="own time",
        what="a sampler's own time per trial, after 60 trials among 5,000 configurations",
        target="under 0.3 s",
        measured=measured,
        verdict=_verdict(verdict),
    )


def rank_of(values: Iterable[float], share: float) -> float:
    """The value that this share of the seeds does not exceed; infinite where too few get there."""
    found = scoring.rank(list(values), share)
    return math.inf if found is None else found


def _ratio_row(
    *, key: str, what: str, limit: float, sides: tuple[Sequence[float], Sequence[float]] | None
) -> Row:
    """A ratio of two medians, at most a limit, with its interval over seeds."""
    measured, verdict = "", "not measured"
    if sides is not None:
        over, under = (rank_of(side, 0.5) for side in sides)
        if math.isinf(over) and math.isinf(under):
            measured, verdict = "neither gets there", "reported"
        elif math.isinf(under):
            measured, verdict = (
                f"{over:.0f}; the search that it is compared with does not get there",
                "reached",
            )
        elif math.isinf(over):
            measured, verdict = f"does not get there (the other: {under:.0f})", "MISSED"
        else:
            measured = f"{over / under:.2f}{_interval(*sides)} ({over:.0f} over {under:.0f})"
            verdict = "reached" if over / under <= limit else "MISSED"
    return Row(
        key=key,
        what=what,
        target=f"at most {limit:g}",
        measured=measured,
        verdict=_verdict(verdict),
    )


def _interval(over: Sequence[float], under: Sequence[float]) -> str:
    """Where 95 % of bootstrapped ratios of medians lie, seeds resampled in pairs."""
    count = min(len(over), len(under))
    if count < LEAST_SEEDS:
        return ""
    picked = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    middle = math.ceil(0.5 * count) - 1
    tops, bottoms = (
        np.sort(np.array(side[:count], dtype=float)[picked], axis=1)[:, middle]
        for side in (over, under)
    )
    known = np.isfinite(bottoms)
    ratios = np.where(known, tops / np.where(known, bottoms, 1.0), 0.0)
    low, high = (float(np.quantile(ratios, share, method="higher")) for share in (0.025, 0.975))
    told = (f"{end:.2f}" if math.isfinite(end) else "never" for end in (low, high))
    return f" [{', '.join(told)}]"


def _standings(judged: Sequence[NonInferiority]) -> tuple[str, Verdict, tuple[str, ...]]:
    """How many comparisons were won, and those that were not, each in a sentence."""
    if not judged:
        return "", "not measured", ()
    bad = [one for one in judged if one.standing not in {"better", "non-inferior"}]
    losses = tuple(
        f"{one.peer} at {one.budget}: {'worse' if one.standing == 'worse' else 'not shown'}, "
        f"{_points(one.difference)} points, bound {_points(one.upper)}"
        for one in bad
    )
    measured = f"{len(judged) - len(bad)} of {len(judged)}"
    missing = [peer for peer in NAMED_PEERS if peer not in {one.peer for one in judged}]
    if missing:
        measured += f"; {', '.join(missing)} not measured"
    if bad:
        return measured, "MISSED", losses
    return measured, "not measured" if missing else "reached", losses


def _verdicts(tables: Sequence[ReplayedTable], label: str) -> list[Mapping[str, Any]]:
    return [one for s in tables for one in s.conditions.get(label, {}).get("verdicts", ())]


def _time_spent(table: ReplayedTable, label: str) -> tuple[float, float] | None:
    """Mean time of the launches of a search, and its mean regret after them; None where it was not measured."""
    seconds = table.conditions.get(label, {}).get("seconds", {}).get(str(RACED_TRIALS))
    regrets = table.regrets(label, RACED_TRIALS)
    if seconds is None or regrets is None:
        return None
    return statistics.fmean(seconds), float(np.mean(regrets))


def _against(seconds: float, others: float) -> str:
    """How one time compares with another, in words."""
    share = seconds / others - 1
    return f"{_percent(abs(share))} {'more' if share > 0 else 'less'} than"


def _count(value: float, most: int) -> str:
    return f"{value:.0f}" if math.isfinite(value) else f"over {most}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(difference: float | None) -> str:
    return "not known" if difference is None else f"{100 * difference:+.1f}"


def _verdict(text: str) -> Verdict:
    assert text in {"reached", "MISSED", "reported", "not measured"}
    return text  # type: ignore[return-value]
