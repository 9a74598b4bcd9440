"""Page of a sampler comparison."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tuner.metrics import objective as objectives
from tuner.metrics.benchmark import TimeToTolerance
from tuner.report import document, formatting, page_header, tables, theme
from tuner.report.benchmark.figures import time_to_tolerance
from tuner.report.comparison import figures as comparison_figures
from tuner.report.comparison.figures import runs_of
from tuner.report.markup import Markup, element, join, row, soft, table, verdict
from tuner.report.study import study_notes, study_view
from tuner.settings.workload import workload_in_words
from tuner.values.sampler_comparison import ComparisonRecord, SamplerRun


def render(record: ComparisonRecord) -> str:
    """Return the page as HTML."""
    sections = (
        ("searches", "The searches", _searches(record)),
        ("winners", "The winners, re-measured", _winners(record)),
        ("environment", "Environment and settings", tables.environment(record)),
    )
    names = " and ".join((", ".join(record.samplers[:-1]), record.samplers[-1]))
    title = f"{names} on {record.model} at {_load(record)}"
    return document.render(title=title, head=_answer(record, title), sections=sections)


def _load(record: ComparisonRecord) -> str:
    target = record.settings.get("target", {})
    return workload_in_words(
        record.concurrency,
        record.client_batch,
        rate_per_s=target.get("rate"),
        arrivals=target.get("arrivals"),
    )


def _answer(record: ComparisonRecord, title: str) -> Markup:
    objective = objectives.find_objective(record.objective)
    line = (
        f"Comparison {record.name}: objective {objective.label}, "
        f"{formatting.plural(record.repeats, 'repeat')} of {formatting.plural(record.trials, 'trial')} "
        "for each sampler, seeds shared within a repeat."
    )
    return join(
        (
            element("h1", title),
            soft(line),
            *_verdicts(record),
            page_header.notes(
                (*(n for n in record.notes if not study_notes.is_plain(n)), *cautions(record))
            ),
            _summary(record),
            page_header.remarks(tuple(filter(study_notes.is_plain, record.notes))),
        )
    )


def cautions(record: ComparisonRecord) -> tuple[str, ...]:
    """Return reasons to doubt the result."""
    found = []
    if record.repeats < 5:
        found.append(
            f"With {formatting.plural(record.repeats, 'repeat')} of each sampler, luck can "
            "decide: five or more repeats say more about the samplers than about these runs."
        )
    missing = [run for run in record.runs if run.winner is None]
    if missing:
        found.append(
            f"{formatting.plural(len(missing), 'run')} found no configuration that worked."
        )
    short = [run for run in record.runs if len(run.objectives) < record.trials]
    if short:
        found.append(f"{formatting.plural(len(short), 'run')} ended before the budget was used.")
    return tuple(found)


def _verdicts(record: ComparisonRecord) -> list[Markup]:
    if not record.differences:
        text = (
            "The winners were not re-measured: the curves below compare values that the searches "
            "saw, which are luckier than what a new evaluation gives."
        )
        return [element("p", text, class_="verdict")]
    made = []
    for difference in record.differences:
        numbers = (
            f"{difference.first} over {difference.second}: "
            f"{formatting.ratio(difference.ratio, difference.interval)}"
            f"{'' if difference.interval.is_vague else ', 95 % interval'}."
        )
        tone = None if difference.outcome == "no difference shown" else "shown"
        made.append(verdict(difference.text, numbers, tone=tone))
    return made


def _summary(record: ComparisonRecord) -> Markup:
    objective = objectives.find_objective(record.objective)
    rows = []
    for sampler in record.samplers:
        runs = runs_of(record, sampler)
        last_values = [
            v for run in runs if run.best_so_far and (v := run.best_so_far[-1]) is not None
        ]
        again = _remeasured(objective, runs)
        mean = _with_range(again.middle, again.low, again.high) if again.middle > 0 else "–"
        shown = [_median_range(last_values), mean]
        for share in theme.TOLERANCES:
            found = sampler_time_to_tolerance(record, sampler, share) if runs else None
            shown.append(_reached_text(found) if found else "–")
        shown.append(_median_range([run.wall_s for run in runs]))
        colour, _ = comparison_figures.style(record, sampler)
        mark = element("span", "● ", style=f"color:{colour}")
        name = element("td", mark, sampler)
        rows.append(row(name, *(tables.cell(text=text) for text in shown)))
    heads = [
        "sampler",
        f"best {objective.axis} seen: median (range)",
        f"winners re-measured ({objective.unit}): mean (range)",
        *(
            f"trials until within {100 * share:g} % of the best of all runs"
            for share in theme.TOLERANCES
        ),
        "seconds per run: median (range)",
    ]
    return table(heads, rows)


def _searches(record: ComparisonRecord) -> Markup:
    band = (
        "the middle half of the runs"
        if record.repeats >= comparison_figures.MIN_FOR_QUARTILES
        else "the range of the runs"
    )
    caption = (
        f"Thin lines are single runs, thick ones their median, the band {band}. A median begins "
        "where every run has a figure. Values are what the searches saw: the luckiest of many "
        "evaluations, better than a new evaluation would give."
    )
    drawn = comparison_figures.best_so_far(record)
    best = document.figure(drawn, name="best-so-far", title="Best so far", caption=caption)
    return join((best, _time_to_tolerance(record)))


def _time_to_tolerance(record: ComparisonRecord) -> Markup | None:
    max_s = max((run.seconds[-1] for run in record.runs if run.seconds), default=0.0)
    if _best(record) is None or not max_s:
        return None
    shares = theme.TOLERANCES
    rows = [
        (sampler, {share: sampler_time_to_tolerance(record, sampler, share) for share in shares})
        for sampler in record.samplers
        if runs_of(record, sampler)
    ]
    labels = {share: f"within {100 * share:g} %" for share in shares}
    return document.figure(
        time_to_tolerance(rows, labels, trials=record.trials, max_s=max_s),
        name="soon",
        title="How soon the best so far is near the best of all runs",
        caption=(
            "Trials, and seconds of a search, until the best value so far is within 10, 5 and 3 % of the best that "
            "any run saw: a bar to the median of the runs, a line to the 90th percentile; a pale bar where "
            "fewer than half of them get there. The best of all is itself a lucky value."
        ),
    )


def _winners(record: ComparisonRecord) -> Markup:
    drawn = comparison_figures.winners(record)
    if drawn is None:
        shown = element("p", "No winner was re-measured.")
    else:
        caption = (
            "Each point is one evaluation of one run's winner, after the searches of its repeat, "
            "alternating; the upright line is the geometric mean of a sampler's evaluations."
        )
        title = "Winners, evaluated again"
        shown = document.figure(drawn, name="winners", title=title, caption=caption)
    return join((shown, _winner_table(record)))


def _winner_table(record: ComparisonRecord) -> Markup:
    objective = objectives.find_objective(record.objective)
    names = sorted({name for run in record.runs for name in run.winner or ()})
    rows = []
    for run in (run for sampler in record.samplers for run in runs_of(record, sampler)):
        again = _remeasured(objective, [run])
        figures = [
            run.repeat,
            run.best_so_far[-1] if run.best_so_far else None,
            again.middle if run.remeasured else None,
            sum(value is None for value in run.objectives),
            run.wall_s,
        ]
        words = [
            formatting.knob_value(run.winner.get(name) if run.winner else None) for name in names
        ]
        cells = [tables.word_cell(run.sampler), *map(tables.cell, figures)]
        rows.append(row(*cells, *map(tables.word_cell, (*words, run.study))))
    columns = [
        "sampler",
        "repeat",
        f"seen in the search ({objective.unit})",
        f"re-measured ({objective.unit})",
        "trials without a figure",
        "seconds",
        *names,
        "study",
    ]
    return tables.sortable(columns, rows)


def _remeasured(
    objective: objectives.Objective, runs: Iterable[SamplerRun]
) -> study_view.MetricSummary:
    return study_view.MetricSummary.over(
        objective.value(measured) for run in runs for measured in run.remeasured
    )


def sampler_time_to_tolerance(
    record: ComparisonRecord, sampler: str, share: float
) -> TimeToTolerance:
    """Return when a sampler's runs came within a share of the overall best."""
    best, objective = _best(record), objectives.find_objective(record.objective)
    trials, seconds = [], []
    for run in runs_of(record, sampler):
        first = np.inf
        for count, value in enumerate(run.best_so_far, start=1):
            if value is None or best is None:
                continue
            limit = best * (1 + share) if objective.is_minimised else best / (1 + share)
            if objective.better(value, limit) == value:
                first = float(count)
                break
        trials.append(first)
        is_timed = np.isfinite(first) and len(run.seconds) >= first
        seconds.append(run.seconds[int(first) - 1] if is_timed else np.inf)
    return TimeToTolerance.over(share, trials, seconds)


def _best(record: ComparisonRecord) -> float | None:
    objective = objectives.find_objective(record.objective)
    seen = [v for run in record.runs for v in run.best_so_far[-1:] if v is not None]
    if not seen:
        return None
    return min(seen) if objective.is_minimised else max(seen)


def _reached_text(found: TimeToTolerance) -> str:
    known = [count for count in found.trials if count is not None]
    runs = len(found.trials)
    if not known:
        return "no run got there"
    got_there = f"{len(known)} of {formatting.plural(runs, 'run')} got there"
    if 2 * len(known) <= runs:
        return got_there
    # Other runs count as more than the budget.
    median = float(np.median([*known, *[np.inf] * (runs - len(known))]))
    return f"{median:g} ({got_there})" if np.isfinite(median) else got_there


def _median_range(values: list[float]) -> str:
    if not values:
        return "–"
    return _with_range(float(np.median(values)), min(values), max(values))


def _with_range(middle: float, low: float, high: float) -> str:
    return f"{formatting.number(middle)} ({formatting.number(low)} to {formatting.number(high)})"
