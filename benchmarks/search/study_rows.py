"""Rows of whole studies: their wall time, and their verdicts.

In: what `measure.py` keeps of each case. Out: a `Row` for each line of `PROTOCOL.md` on studies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import conditions
from replayed_case import ReplayedCase, quantile
from row import Row, concluded, count, percent, share_of

STUDY_S = {"resnet-20-quiet": 120, "resnet-20": 240}
STUDY_SHARE, OVER_ORACLE = 0.9, 1.5
COVERED = (0.93, 0.97)
FALSE_BETTER = 0.038


def study(cases: Sequence[ReplayedCase]) -> Row:
    """Wall time of whole studies."""
    row = Row(
        key="study",
        what="whole study: seconds until 90 % of the seeds serve what is within 5 %, finals and "
        "verdict included",
        target=", ".join(f"{name} {most} s" for name, most in STUDY_S.items())
        + f"; the others {OVER_ORACLE} times the oracle's",
        head=(
            "case",
            *(f"good after {search_s} s of search" for search_s in conditions.STUDIES_S),
            "seconds",
            "the oracle's",
            "and the same verification",
        ),
    )
    lines, seconds = [], {}
    ratios: dict[str, float] = {}
    alike: dict[str, float] = {}
    for case in cases:
        studies = case.studies
        if not studies:
            continue
        shares = {key: share_of(one["is_good"] for one in each) for key, each in studies.items()}
        ends = [
            (quantile([one["seconds"] for one in each], STUDY_SHARE), float(key))
            for key, each in studies.items()
            if shares[key] >= STUDY_SHARE
        ]
        seconds[case.name], search_s = min(ends, default=(math.inf, 0.0))
        within_s = case.figures("oracle", "within_s", "0.05")
        oracle = math.inf if within_s is None else quantile(within_s, STUDY_SHARE)
        verified = oracle + seconds[case.name] - search_s
        if case.name not in STUDY_S and math.isfinite(oracle):
            ratios[case.name] = seconds[case.name] / oracle
            alike[case.name] = seconds[case.name] / verified if ends else math.inf
        each = [percent(shares.get(f"{search_s:g}")) for search_s in conditions.STUDIES_S]
        ends_s = (seconds[case.name], oracle, verified)
        lines.append((case.label, *each, *map(count, ends_s)))
    if not lines:
        return row
    known = {name: seconds[name] for name in STUDY_S if name in seconds}
    measured = ", ".join(f"{name} {count(value)} s" for name, value in known.items())
    if ratios:
        worst, most = (max(found, key=found.__getitem__) for found in (ratios, alike))
        measured += f"; others at most {ratios[worst]:.1f} times the oracle's ({worst}), at most "
        measured += f"{alike[most]:.1f} times the oracle's and the same verification ({most})"
    if len(known) < len(STUDY_S):
        return dataclasses.replace(row, measured=measured, lines=lines)
    is_reached = all(value <= STUDY_S[name] for name, value in known.items())
    is_reached = is_reached and max(ratios.values(), default=0.0) <= OVER_ORACLE
    return concluded(row, lines, measured, is_reached=is_reached)


def verdicts(cases: Sequence[ReplayedCase]) -> Row:
    """Coverage of the intervals, and false verdicts."""
    row = Row(
        key="verdicts",
        what="verdicts: intervals that contain the true ratio; false *better* if all are equal",
        target="93 to 97 %; at most 3.8 %",
        head=("case", "intervals", "that contain it", "studies of equals", "false better"),
    )
    lines = []
    every: list[bool] = []
    equal: list[bool] = []
    for case in cases:
        covers = [
            one["covers"]
            for studies in case.studies.values()
            for one in studies
            if one["covers"] is not None
        ]
        null = case.conditions.get("null", {}).get("studies", {})
        false = [one["outcome"] == "better" for studies in null.values() for one in studies]
        if covers or false:
            shares = [percent(share_of(each)) if each else "-" for each in (covers, false)]
            lines.append((case.label, str(len(covers)), shares[0], str(len(false)), shares[1]))
        every += covers
        equal += false
    if not every or not equal:
        return dataclasses.replace(row, lines=lines)
    share, better = share_of(every), share_of(equal)
    measured = f"{percent(share)} of {len(every):,}; {percent(better)} of {len(equal):,}"
    is_reached = COVERED[0] <= share <= COVERED[1] and better <= FALSE_BETTER
    return concluded(row, lines, measured, is_reached=is_reached)
