"""Rows of searches: regret, trials until something good, and harm.

In: what `measure.py` keeps of each case. Out: a `Row` for each line of `PROTOCOL.md` on searches, with
its table of cases. A figure that the data does not hold makes a row that says so.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import conditions
import measure
import numpy as np
from replayed_case import ReplayedCase, quantile
from row import Row, concluded, count, percent, points, yes

from tuner.measurement import noninferiority
from tuner.metrics.benchmark import NonInferiority

OURS = "structured"
OWN_MODELS = frozenset(
    {"resnet", "reviews", "linear", "opennmt", "digits-sklearn", "wine-lightgbm"}
)
"""Models that this project trained; the others are the gallery's."""
TRIED = (10, 20)
GAPS = {53: 0.010, 90: 0.007}
HARM = 0.05
HARM_S, HARM_KEYS = (30, 60), ("regret", "leading_regret")
PEERS_S, JUDGED_S = (30, 60, 120), 60
TRANSFER, TRANSFER_LOSS = 0.7, 0.01
LATER = 2
"""Trials by which ours may be later than `hill-climb` on models of others."""
WRONG = 1.25
HALF = f"{conditions.HALF_S:g}"


def tried(cases: Sequence[ReplayedCase]) -> Row:
    """Trials until a good configuration was tried."""
    row = Row(
        key="tried",
        what="search alone: trials until a configuration within 3 % was tried, median / p90",
        target=f"{TRIED[0]} / {TRIED[1]} on each case",
        head=("case", "good", "median", "p90", "reached"),
    )
    lines, reached, missing = [], [], []
    for case in cases:
        if (found := case.figures(OURS, "tried")) is None:
            missing.append(case.name)
            continue
        ends = quantile(found, 0.5), quantile(found, 0.9)
        reached.append(all(end <= most for end, most in zip(ends, TRIED, strict=True)))
        good = f"{case.facts['good'][f'{measure.TRIED:g}']} of {case.facts['candidates']}"
        lines.append((case.label, good, *map(count, ends), yes(reached[-1])))
    if not lines:
        return row
    measured = f"reached on {sum(reached)} of {len(reached)} cases"
    return concluded(row, lines, measured, is_reached=all(reached), missing=missing)


def gap(cases: Sequence[ReplayedCase]) -> Row:
    """Mean regret less the oracle's."""
    row = Row(
        key="oracle",
        what="gap to the oracle: mean regret less the oracle's at 53 / 90 s, mean of the cases",
        target="1.0 / 0.7 points",
        head=("case", *(f"{who} at {at_s} s" for at_s in GAPS for who in ("ours", "oracle"))),
    )
    lines, gaps, missing = [], [], []
    for case in cases:
        found = [case.regret(who, at_s) for at_s in GAPS for who in (OURS, "oracle")]
        known = [one for one in found if one is not None]
        if len(known) == len(found):
            lines.append((case.label, *map(percent, known)))
            gaps.append((case, [known[0] - known[1], known[2] - known[3]]))
        else:
            missing.append(case.name)
    if not lines:
        return row
    halves = _halves(gaps, lambda each: np.mean(each, axis=0).tolist())
    is_reached = all(
        one <= most
        for half in halves.values()
        for one, most in zip(half, GAPS.values(), strict=True)
    )
    measured = _by_half(halves, lambda half: " / ".join(map(points, half)))
    return concluded(row, lines, measured, is_reached=is_reached, missing=missing)


def _halves(
    found: Sequence[tuple[ReplayedCase, list[float]]],
    mean: Callable[[Sequence[list[float]]], list[float]],
) -> dict[str, list[float]]:
    """Return the mean over all cases, and over those that judge, if there are any."""
    judged = [each for case, each in found if case.is_judged]
    means = {"all": mean([each for _, each in found])}
    return means | ({"judges": mean(judged)} if judged else {})


def _by_half(halves: Mapping[str, list[float]], tell: Callable[[list[float]], str]) -> str:
    return "; ".join(f"{name} {tell(half)}" for name, half in halves.items())


def harm(cases: Sequence[ReplayedCase]) -> Row:
    """Searches whose recommendation is worse than the default, and what keeping it costs."""
    row = Row(
        key="harm",
        what="no harm: searches that recommend what is over 3 % worse than the default, at the "
        "worst trial from 5 on, worst case; mean regret at 30 / 60 s with the rule and without it",
        target="at most 5 %; regret no worse for it",
        head=(
            "case",
            "worst share",
            "after trial",
            *(f"regret at {at_s} s{which}" for at_s in HARM_S for which in ("", ", best mean")),
            "the default's",
        ),
    )
    lines, worst, costs, missing = [], [], [], []
    for case in cases:
        if (found := case.figures(OURS, "harm")) is None:
            missing.append(case.name)
            continue
        at = int(np.argmax(found))
        worst.append((found[at], case.name))
        pairs = [case.study_mean(at_s, key) for at_s in HARM_S for key in HARM_KEYS]
        known = [one for one in pairs if one is not None]
        costs += [(case, known)] if known else []
        default = percent(case.facts["default_regret"])
        trial = str(measure.HARM_TRIALS[at])
        lines.append((case.label, percent(found[at]), trial, *map(percent, pairs), default))
    if not lines:
        return row
    most, name = max(worst)
    measured, is_no_worse = f"{percent(most)} ({name})", False
    if costs:
        halves = _halves(costs, lambda each: np.mean(each, axis=0).tolist())
        measured += f"; {_by_half(halves, _with_and_without)}"
        is_no_worse = all(
            round(100 * kept, 1) <= round(100 * leading, 1)
            for half in halves.values()
            for kept, leading in zip(half[::2], half[1::2], strict=True)
        )
    is_reached = most <= HARM and is_no_worse
    return concluded(row, lines, measured, is_reached=is_reached, missing=missing)


def _with_and_without(means: Sequence[float]) -> str:
    kept, leading = (" / ".join(map(percent, means[place::2])) for place in (0, 1))
    return f"{kept}, without {leading}"


def comparisons(cases: Sequence[ReplayedCase], at_s: int) -> tuple[NonInferiority, ...]:
    """Test against each peer, with one mean difference for each recording."""
    differences = []
    for peer in conditions.PEERS:
        by_table: dict[str, list[float]] = {}
        for case in cases:
            mine, other = (case.figures(who, "regret_at_s", str(at_s)) for who in (OURS, peer))
            if mine is not None and other is not None:
                # A seed begins at one moment of the machine for both.
                paired = [one - two for one, two in zip(mine, other, strict=False)]
                by_table.setdefault(case.facts["table"], []).append(statistics.fmean(paired))
        if by_table:
            means = np.array([statistics.fmean(each) for each in by_table.values()])
            differences.append((peer, at_s, means))
    return noninferiority.judge(differences) if differences else ()


def against_peers(cases: Sequence[ReplayedCase]) -> Row:
    """Non-inferiority to every peer."""
    row = Row(
        key="peers",
        what=f"against every peer at {JUDGED_S} s: not worse by 1 point of mean regret, a recording "
        "being the unit (95 %, Holm)",
        target="every peer",
        head=(
            "peer",
            "recordings",
            *(f"difference at {at_s} s" for at_s in PEERS_S),
            f"upper bound at {JUDGED_S} s",
            "result",
            "difference on judges",
        ),
    )
    by_time = {at_s: {one.peer: one for one in comparisons(cases, at_s)} for at_s in PEERS_S}
    judges = [case for case in cases if case.is_judged]
    judged = {one.peer: one.difference for one in comparisons(judges, JUDGED_S)}
    every = len({case.facts["table"] for case in cases})
    lines, reached = [], []
    for peer, one in by_time[JUDGED_S].items():
        others = [by_time[at_s].get(peer) for at_s in PEERS_S]
        differences = ["-" if each is None else points(each.difference) for each in others]
        is_near = judged.get(peer, 0.0) <= noninferiority.MARGIN
        if one.units == every:
            reached.append(one.standing in {"better", "non-inferior"} and is_near)
        bound = "-" if one.upper is None else points(one.upper)
        on_judges = points(judged[peer]) if peer in judged else "-"
        lines.append((peer, str(one.units), *differences, bound, one.standing, on_judges))
    if not lines:
        return row
    units = {peer: one.units for peer, one in by_time[JUDGED_S].items()}
    missing = [
        f"{peer} on {every - units.get(peer, 0)}"
        for peer in conditions.PEERS
        if units.get(peer, 0) < every
    ]
    measured = f"{sum(reached)} of {len(reached)}"
    return concluded(row, lines, measured, is_reached=all(reached), missing=missing)


def gallery(cases: Sequence[ReplayedCase]) -> Row:
    """Trials within 10 % on models of others."""
    samplers = (OURS, "hill-climb", "random")
    row = Row(
        key="gallery",
        what="models of others: trials within 10 % for good, median / p90 in 120 s",
        target="at most 2 trials later than hill-climb, never later than random",
        head=("case", *samplers),
    )
    lines, good, missing = [], [], []
    for case in cases:
        if not case.facts["is_main"] or case.facts["model"] in OWN_MODELS:
            continue
        found = [case.trials(sampler, "0.1", conditions.WHOLE_S) for sampler in samplers]
        if None in found:
            missing.append(case.name)
        if found[0] is None:
            continue
        cells = ["-" if one is None else " / ".join(map(count, one)) for one in found]
        lines.append((case.label, *cells))
        if None not in found:
            ours, climb, at_random = found
            good.append(
                all(mine <= other + LATER for mine, other in zip(ours, climb, strict=True))
                and all(mine <= other for mine, other in zip(ours, at_random, strict=True))
            )
    if not good:
        return dataclasses.replace(row, lines=lines)
    measured = f"{sum(good)} of {len(good)} recordings"
    return concluded(row, lines, measured, is_reached=all(good), missing=missing)


def transfer(cases: Sequence[ReplayedCase]) -> Row:
    """Early regret after a search under another load."""
    row = Row(
        key="transfer",
        what="after another load: mean regret over trials 1 to 15, over a fresh search's, all pairs",
        target="at most 0.7, on no pair over 1 point worse",
        head=("case", "after", "fresh", "after it", "ratio"),
    )
    lines, fresh, after, is_judged = [], [], [], False
    for case in cases:
        for label in sorted(case.conditions):
            sides = case.figures(OURS, "regret_early"), case.figures(label, "regret_early")
            if not label.startswith("after-") or sides[0] is None or sides[1] is None:
                continue
            is_judged |= case.is_judged
            fresh.append(statistics.fmean(sides[0]))
            after.append(statistics.fmean(sides[1]))
            cells = percent(fresh[-1]), percent(after[-1]), f"{after[-1] / fresh[-1]:.2f}"
            lines.append((case.label, label.removeprefix("after-"), *cells))
    if not lines:
        return row
    ratio = sum(after) / sum(fresh)
    loss = max(mine - usual for mine, usual in zip(after, fresh, strict=True))
    is_reached = ratio <= TRANSFER and loss <= TRANSFER_LOSS
    measured = f"{ratio:.2f}, at worst {points(loss)} points"
    measured += "" if is_judged else "; no pair judges"
    return concluded(row, lines, measured, is_reached=is_reached)


def wrong(cases: Sequence[ReplayedCase]) -> Row:
    """Trials with a wrong prediction over those without one."""
    kinds = ("right", *conditions.WRONG)
    row = Row(
        key="wrong",
        what="wrong predictions: median trials to 5 % for good in 60 s, over gp's, geometric mean of "
        "the cases",
        target=f"every kind at most {WRONG}",
        head=("case", "gp", *kinds),
    )
    lines, logs, missing = [], [], []
    for case in cases:
        labels = {"gp": "gp", "right": OURS} | {kind: f"wrong-{kind}" for kind in conditions.WRONG}
        if not case.facts["is_main"]:
            continue
        seeds = [case.figures(one, "within", "0.05", HALF) for one in labels.values()]
        known = [one for one in seeds if one is not None]
        if len(known) < len(seeds):
            missing.append(case.name)
            continue
        count = min(map(len, known))
        # All trials of the time, where half of the seeds never get there.
        found = {
            key: min(quantile(each[:count], 0.5), case.conditions[label]["trials"][HALF])
            for (key, label), each in zip(labels.items(), known, strict=True)
        }
        lines.append((case.label, *(f"{trials:.0f}" for trials in found.values())))
        logs.append((case, [math.log(found[kind] / found["gp"]) for kind in kinds]))
    if not lines:
        return row
    halves = _halves(logs, lambda each: np.exp(np.mean(each, axis=0)).tolist())
    measured = _by_half(
        halves,
        lambda half: ", ".join(
            f"{kind} {ratio:.2f}" for kind, ratio in zip(kinds, half, strict=True)
        ),
    )
    is_reached = all(max(half[1:]) <= WRONG for half in halves.values())
    return concluded(row, lines, measured, is_reached=is_reached, missing=missing)
