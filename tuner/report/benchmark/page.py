"""Page of a table benchmark: which sampler recommends well, and how soon."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.metrics import objective as objectives
from tuner.metrics.benchmark import MIN_UNITS, BenchmarkRecord, NonInferiority, TableBenchmark
from tuner.report import document, formatting
from tuner.report.benchmark import figures as benchmark_figures
from tuner.report.benchmark.figures import rank_samplers
from tuner.report.benchmark.result_tables import (
    SHARES,
    by_regret,
    decisive,
    noninferiority_table,
    sampler_table,
    summary_table,
)
from tuner.report.markup import Markup, bullets, element, join, soft, verdict
from tuner.settings.workload import SCENARIO, workload_in_words

NO_WORSE = frozenset({"better", "non-inferior"})


def render(record: BenchmarkRecord) -> str:
    """Return the page as HTML."""
    sections = [
        (f"table-{place}", table.name, _table_section(record, table, place))
        for place, table in enumerate(record.tables)
    ]
    if record.over_tables:
        sections.insert(0, ("over-tables", "Over all benchmark tables", _over_tables(record)))
    sections.append(("method", "How it was compared", _method(record)))
    return document.render(title=title_of(record), head=_answer(record), sections=sections)


def title_of(record: BenchmarkRecord) -> str:
    """Return the page's title."""
    others = formatting.plural(len(record.samplers) - 1, "other sampler")
    where = f"{len(record.tables)} recorded benchmark tables"
    if len(record.tables) == 1:
        where = record.tables[0].name
    return f"{record.reference} against {others} on {where}"


def _answer(record: BenchmarkRecord) -> Markup:
    line = (
        f"Comparison {record.name}: {formatting.plural(record.seeds, 'search')} of "
        f"{formatting.plural(record.trials, 'trial')} of each sampler on each benchmark table, replayed; seeds "
        "shared."
    )
    heading = element("h1", title_of(record))
    return join((heading, soft(line), *_verdicts(record), summary_table(record)))


def _verdicts(record: BenchmarkRecord) -> list[Markup]:
    found, unit = decisive(record)
    made = []
    for budget in sorted({one.budget for one in found}):
        each = [one for one in found if one.budget == budget]
        tone = "worse" if any(one.standing == "worse" for one in each) else None
        if all(one.standing in NO_WORSE for one in each):
            tone = "better"
        sentence, numbers = _sentence(record, each, budget), _counts(record, each, unit)
        made.append(verdict(sentence, numbers, tone=tone))
    return made


def _sentence(record: BenchmarkRecord, each: Sequence[NonInferiority], budget: int) -> str:
    parts = []
    everyone = f"of the {formatting.plural(len(each), 'other')}"
    for standings, words, whole in (
        (NO_WORSE, "no worse than", "any"),
        ({"not shown"}, "undecided against", "all"),
        ({"worse"}, "worse than", None),
    ):
        peers = [one.peer for one in each if one.standing in standings]
        if whole is not None and len(peers) == len(each):
            parts.append(f"{words} {whole} {everyone}")
        elif peers:
            parts.append(f"{words} {_join_names(peers)}")
    trials = formatting.plural(budget, "trial")
    return f"After {trials} {record.reference} is {'; '.join(parts)}."


def _counts(record: BenchmarkRecord, each: Sequence[NonInferiority], unit: str) -> str:
    better = [one.peer for one in each if one.standing == "better"]
    units = min(one.units for one in each)
    if units < MIN_UNITS:
        return f"Nothing is shown of fewer than {MIN_UNITS} {unit}s; here {units}."
    beaten = f"Its regret is lower than that of {_join_names(better)}. " if better else ""
    return (
        f"{beaten}No worse: by {_points(record)} of regret at most, upper 95 % bound, corrected by Holm; "
        f"{formatting.plural(units, unit)}."
    )


def _points(record: BenchmarkRecord) -> str:
    points = 100 * record.margin
    return f"{points:g} point{'' if points == 1 else 's'}"


def _join_names(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _over_tables(record: BenchmarkRecord) -> Markup:
    caption = (
        f"Mean over {formatting.plural(len(record.tables), 'benchmark table')} of the regret of {record.reference} "
        f"less that of each other sampler, {_forest_key(record)} A benchmark table is one unit, however many seeds it "
        "has."
    )
    return _differences(record, record.over_tables, by_regret(record), caption, name="forest")


def _forest_key(record: BenchmarkRecord) -> str:
    return (
        "in points (left is good), and the way to its upper 95 % bound; the dashed line is the "
        f"margin of {_points(record)}."
    )


def _differences(
    record: BenchmarkRecord,
    found: Sequence[NonInferiority],
    order: Sequence[str],
    caption: str,
    *,
    name: str,
) -> Markup:
    found = sorted(found, key=lambda one: order.index(one.peer))
    shown = document.figure(
        benchmark_figures.forest(found, record.margin),
        name=name,
        title="No worse than the others?",
        caption=caption,
        is_wide=True,
    )
    return join((shown, noninferiority_table(found)))


def _table_section(record: BenchmarkRecord, table: TableBenchmark, place: int) -> Markup:
    regret = document.figure(
        benchmark_figures.regret(table, record.reference),
        name=f"regret-{place}",
        title="Regret of what is recommended, by trial",
        caption=(
            "One panel for each sampler: the median over its searches and the middle half of "
            "them, over the medians of all others in grey. The regret is how far what the "
            "search would recommend lies above the optimum; a search that recommends nothing "
            "yet has that of the default. Lower, and low sooner, is better."
        ),
        is_wide=True,
    )
    within = document.figure(
        benchmark_figures.tolerance_figure(table, record.reference, record.trials),
        name=f"within-{place}",
        title="How soon the recommendation is good for good",
        caption=_tolerance_caption(table),
        is_wide=True,
    )
    parts = soft(_facts(table)), bullets(table.notes, class_="soft"), regret, within
    samplers = element("h3", "All samplers"), sampler_table(record, table)
    return join((*parts, _against(record, table, place), *samplers))


def _facts(table: TableBenchmark) -> str:
    objective = objectives.find_objective(table.objective)
    load = workload_in_words(
        table.concurrency,
        table.client_batch,
        rate_per_s=table.rate_per_s,
        arrivals=SCENARIO,
    )
    default = (
        "the default does not work here"
        if table.default_regret is None
        else f"the default lies {formatting.percent(table.default_regret)} above it"
    )
    return (
        f"{table.model} on {table.engine} at {load}: {formatting.plural(table.candidates, 'configuration')}; "
        f"optimum {formatting.quantity(table.optimum, objective.unit)} of {objective.label} (standard error "
        f"{formatting.percent(table.optimum_se)}), {default}."
    )


def _tolerance_caption(table: TableBenchmark) -> str:
    parts = [
        f"{formatting.percent(table.tolerances[share])} ({table.good_candidates[share]} of "
        f"{table.candidates} configurations; random search, told the truth, meets one after "
        f"{table.random_median[share]})"
        for share in SHARES
    ]
    return (
        "Trials, and seconds, after which what is recommended lies within a tolerance and stays "
        "there: a bar to the median of the searches, a line to the 90th percentile, which goes to the "
        "end where more than one in ten never gets there; a pale bar where fewer than half do. Seconds "
        "are wall seconds, with starts, warm-up and the sampler. "
        f"Tolerances, never finer than the truth is known: {'; '.join(parts)}."
    )


def _against(record: BenchmarkRecord, table: TableBenchmark, place: int) -> Markup | None:
    if not table.noninferiority:
        return None
    caption = (
        f"Mean over the seeds, paired, of the regret of {record.reference} less that of each other "
        f"sampler, {_forest_key(record)}"
    )
    order = [one.sampler for one in rank_samplers(table, record.reference)]
    name = f"forest-{place}"
    return _differences(record, table.noninferiority, order, caption, name=name)


def _method(record: BenchmarkRecord) -> Markup:
    tests = formatting.plural(len(record.samplers) - 1, "sampler")
    items = (
        (
            "Every sampler proposes configurations to the same search, each trial has the true value of its "
            "configuration times the recorded machine's slowdown at its time, and after each the same rule "
            "says what is recommended."
        ),
        (
            "Searches with the same seed are paired. The bound is Student's t on the differences of a pair, "
            "one-sided, 95 %; regrets are skewed, so that with few seeds it is approximate. p-values are "
            f"corrected by Holm over {tests} and all budgets."
        ),
        (
            f"“Non-inferior” is shown where the corrected p-value of “worse by {_points(record)} or more” is at "
            "most 0.05; “better” where the bound is below 0 as well; “worse” where the other bound is above "
            "the margin."
        ),
    )
    return join([bullets([*items, *record.notes])])
