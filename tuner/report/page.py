"""Page of one study: verdict, search, latencies, knobs, trials, environment."""

from __future__ import annotations

import numpy as np

from tuner.metrics import objective as objectives
from tuner.report import (
    document,
    formatting,
    front_figures,
    importance,
    knob_figures,
    page_header,
    request_figures,
    search_figures,
    tables,
    theme,
)
from tuner.report.document import Section
from tuner.report.markup import Markup, element, join, soft
from tuner.report.request_figures import Phases
from tuner.report.study import study_view
from tuner.values.measurement import MIN_FOR_P99
from tuner.values.study_record import StudyRecord

NO_TRIAL = element("p", "The study has no trial yet.")
GLYPHS = {
    "diamond": "◆",
    "circle-open": "○",
    "circle": "●",
    "square-open": "□",
    "star": "★",
    "x-thin": "×",
    "triangle-down-open": "▽",
}


def render(study: StudyRecord) -> str:
    """Return the page as HTML."""
    sections = (
        *_front(study),
        ("search", "The search", _search(study)),
        ("latencies", "Latencies of best and default", _latencies(study)),
        ("knobs", "The knobs", _knobs(study)),
        ("trials", "All trials", _trials(study)),
        ("environment", "Environment and settings", tables.environment(study)),
    )
    load = study_view.workload(study)
    title = f"{study.model} at {load}: {study.name}"
    return document.render(title=title, head=page_header.answer(study), sections=sections)


def _front(study: StudyRecord) -> tuple[Section, ...]:
    if study.second is None:
        return ()
    if not study.pareto_front:
        text = "There is no front: the study is not finished, or no configuration was a solution."
        return (("front", "The front", element("p", text)),)
    direction = "Better is less of a latency or a cost, and more of a throughput"
    if all(side.is_minimised for side in front_figures.sides(study)):
        direction = "Further left and further down is better"
    drawn = document.figure(
        front_figures.figure(study),
        name="front",
        title="What none beats in both objectives",
        caption=(
            f"{direction}. Small marks are single evaluations; the dots are the configurations that none beats "
            "in both, by what all evaluations together say, with 95 % intervals: an evaluation that lies beyond "
            "them was lucky. The star is the one that was verified and is exported (--point)."
        ),
    )
    out = " --out DIR" if study.shared is not None else ""
    any_other = soft(f"Any other is exported by its trial: tune export STUDY --trial N{out}.")
    return (("front", "The front", join((drawn, front_figures.points(study), any_other))),)


def _search(study: StudyRecord) -> Markup:
    if not study.trials:
        return NO_TRIAL
    if not study_view.successful_trials(study.trials):
        return element(
            "p",
            "No trial gave a figure, so there is nothing to draw; the table of all trials has the "
            "reason of each.",
        )
    caption = (
        "Each point is one evaluation, with a 95 % interval from that evaluation alone; "
        "another evaluation of the same configuration may differ by more. The line is "
        "the best value so far: as the luckiest of many, it looks better than it is, "
        "which is why the result above comes from new evaluations. Marks on the lower "
        "edge are trials without a figure; hover over one for the reason."
    )
    luckier = study_view.is_luckier_than_best(study)
    if luckier is not None:
        caption += (
            f" The best configuration is not that of the best measurement, trial {luckier.number}, but the one "
            "that all measurements together, those of its neighbours included, make the best: of "
            "many measurements the best is partly luck."
        )
    title = "Objective of every trial"
    drawn = search_figures.convergence(study)
    return document.figure(drawn, name="convergence", title=title, caption=caption)


def _latencies(study: StudyRecord) -> Markup:
    drawn = request_figures.distribution(study), request_figures.over_time(study)
    if drawn[0] is None or drawn[1] is None:
        return element(
            "p", "No single requests were kept for the default or the best configuration."
        )
    kept = request_figures.phases(study)
    distribution = document.figure(
        drawn[0],
        name="distribution",
        title="How long requests took",
        caption=_distribution_caption(study, kept),
    )
    dotted = "A dotted line marks where measuring began. " if _is_cut(kept) else ""
    over_time = document.figure(
        drawn[1],
        name="over-time",
        title="Latencies over time",
        caption=(
            "Points are single requests, thinned to 1,200 a side with the slowest always "
            f"kept; lines are medians over short stretches of time. {dotted}A drift or a "
            "step after the warm-up would cast doubt on the measurement."
        ),
    )
    return join((distribution, over_time))


def _is_cut(kept: Phases) -> bool:
    return all(phase.warmup_s is not None for phase in kept.values())


def _distribution_caption(study: StudyRecord, kept: Phases) -> str:
    side = (
        "One evaluation of each" if len(kept) > 1 else f"One evaluation of the {next(iter(kept))}"
    )
    cut = "Where the measured part lies is not known here, so nothing is cut."
    if _is_cut(kept):
        when = "were due" if study.is_open else "finished"
        cut = f"The requests are those that {when} in its measured part, as in the figures above."
    start = "when it was due" if study.is_open else "the first byte sent"
    caption = (
        f"{side}. Further left is faster; the upper part shows the slowest requests. {cut} "
        f"A latency counts from {start} to the last byte received."
    )
    if any(len(phase.measured_ms) < MIN_FOR_P99 for phase in kept.values()):
        caption += f" p99 is not marked below {MIN_FOR_P99} requests, too few to know it."
    errors = [
        f"{role} {formatting.plural(phase.errors, 'request')}"
        for role, phase in kept.items()
        if phase.errors
    ]
    if errors:
        missing = "Without a response" if study.shared is None else "Refused, or without a response"
        caption += f" {missing}, and not drawn: {', '.join(errors)}."
    return caption


def _knobs(study: StudyRecord) -> Markup:
    varied = study_view.varied_knobs(study)
    if not varied:
        return element("p", "No knob was varied: there is nothing to compare yet.")
    if not study_view.successful_trials(study.trials):
        return element("p", "No trial gave a figure: there is nothing to compare the knobs by.")
    fixed = ", ".join(knob.name for knob in study.knobs if knob not in varied)
    axis = objectives.find_objective(study.objective).axis
    slices = [
        document.figure(
            knob_figures.slice_of(study, knob),
            name=f"slice-{index}",
            title=f"{axis} against {formatting.knob_label(knob.name, knob.unit)}",
            has_heading=False,
        )
        for index, knob in enumerate(varied)
    ]
    parallel = document.figure(
        knob_figures.parallel(study),
        name="parallel",
        title="All knobs at once",
        caption=(
            "One line per trial, coloured by its objective; thick: "
            "default (orange) and best (green); dotted: no figure, so the line ends early."
        ),
        is_wide=True,
    )
    hint = (
        "Every trial against one knob; the other knobs differ from point to point, so a "
        "cloud that leans is a hint and not a proof. Points are shifted a little sideways."
    )
    return join(
        (
            _importance(study),
            element("h3", f"One knob at a time: {axis}"),
            soft(hint),
            _key(study),
            element("div", *slices, class_="slices"),
            soft(f"Never varied: {fixed}.") if fixed else None,
            parallel,
        )
    )


def _importance(study: StudyRecord) -> Markup:
    title = "Which knobs matter"
    found = importance.main_effects(study, np.random.default_rng(0))
    if found is None:
        text = (
            f"Fewer than {importance.MIN_TRIALS} trials gave figures that differ: too few to "
            "say which knob matters."
        )
        return join((element("h3", title), element("p", text)))
    caption = (
        f"From {formatting.plural(found.trials, 'trial')}: {found.basis}. A bar is the share of the "
        "variance of the log objective that the knob explains on its own (one-way analysis of "
        "variance, epsilon squared, corrected for the number of levels); its line is a 95 % "
        "bootstrap interval. The upright mark is what a knob without effect stays below in 95 % "
        "of shuffles: a bar that does not clear it shows nothing. Effects that need two knobs "
        "together, failures, and values that were not tried are not in it."
    )
    drawn = search_figures.importance(found)
    return document.figure(drawn, name="importance", title=title, caption=caption)


def _key(study: StudyRecord) -> Markup:
    good = study_view.successful_trials(study.trials)
    failed = study_view.failed_trials(study.trials)
    kinds = [trial.origin for trial in good] + [trial.outcome.status for trial in failed]
    kinds += ["best"] if study.best is not None else []
    items = []
    for mark in map(theme.mark, dict.fromkeys(kinds)):
        glyph = element("span", GLYPHS.get(mark.symbol, "●"), style=f"color:{mark.colour}")
        items.append(element("span", glyph, f" {mark.label}"))
    return element("div", *items, class_="key")


def _trials(study: StudyRecord) -> Markup:
    if not study.trials:
        return NO_TRIAL
    text = "A heading sorts by its column. Orange and green edges mark default and best."
    return join((soft(text), tables.trials(study)))
