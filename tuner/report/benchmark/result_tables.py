"""Tables of a benchmark page: a row per sampler, or per peer of the reference."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.metrics.benchmark import BenchmarkRecord, NonInferiority, SamplerResult, TableBenchmark
from tuner.report import formatting
from tuner.report.benchmark import figures as benchmark_figures
from tuner.report.benchmark.figures import rank_samplers
from tuner.report.markup import Child, Markup, element, row, table
from tuner.report.tables import cell, sortable, word_cell

SHARES = (0.10, 0.05, 0.03)


def decisive(record: BenchmarkRecord) -> tuple[Sequence[NonInferiority], str]:
    """Return the decisive results and their unit: tables if there are several, else seeds."""
    if record.over_tables:
        return record.over_tables, "table"
    return record.tables[0].noninferiority, "seed"


def summary_table(record: BenchmarkRecord) -> Markup:
    """Tabulate the samplers' means over the benchmark tables."""
    found, _ = decisive(record)
    budgets = sorted({one.budget for one in found}) or [record.trials]
    rows = []
    for sampler in by_regret(record):
        each = _results(record, sampler)
        if not each:
            continue
        means = [sum(one.regret.mean[budget - 1] for one in each) / len(each) for budget in budgets]
        own_ms = sum(one.sampler_ms for one in each) / len(each)
        shown = [
            *map(formatting.percent, means),
            *(_medians(each, share) for share in SHARES),
            formatting.number(own_ms),
        ]
        name = element("strong", sampler) if sampler == record.reference else sampler
        rows.append(row(name, *(cell(text=text) for text in shown)))
    heads = [
        "sampler",
        *(f"mean regret after {budget}" for budget in budgets),
        *(f"trials to within {100 * share:g} %" for share in SHARES),
        "own ms per trial",
    ]
    return table(heads, rows, class_="figures")


def by_regret(record: BenchmarkRecord) -> list[str]:
    """Return the reference, then the other samplers by mean regret."""

    def mean(sampler: str) -> float:
        each = _results(record, sampler)
        return sum(sum(one.regret.mean) for one in each) / len(each) if each else float("inf")

    return sorted(record.samplers, key=lambda name: (name != record.reference, mean(name)))


def _results(record: BenchmarkRecord, sampler: str) -> list[SamplerResult]:
    return [one for table in record.tables if (one := table.of(sampler)) is not None]


def _medians(each: Sequence[SamplerResult], share: float) -> str:
    medians = [one.time_to_tolerance(share).median for one in each]
    known = [median for median in medians if median is not None]
    if not known:
        return "–"
    if len(each) == 1:
        return f"{known[0]:.0f}"
    ends = f"{min(known):.0f} to {max(known):.0f}" if max(known) > min(known) else f"{known[0]:.0f}"
    missing = len(medians) - len(known)
    return f"{ends} ({missing} never)" if missing else ends


def sampler_table(record: BenchmarkRecord, benchmark: TableBenchmark) -> Markup:
    """Tabulate the samplers' results on one benchmark table."""
    budgets = sorted({one.budget for one in benchmark.noninferiority}) or [record.trials]
    rows = []
    for one in rank_samplers(benchmark, record.reference):
        reached = [one.time_to_tolerance(share) for share in SHARES]
        values = [
            *(100 * one.regret.mean[budget - 1] for budget in budgets),
            *(end for within in reached for end in (within.median, within.p90)),
            one.time_to_tolerance(0.05).median_s,
            one.failures,
            one.sampler_ms,
        ]
        rows.append(row(word_cell(one.sampler), *map(cell, values)))
    columns = [
        "sampler",
        *(f"mean regret after {budget} (%)" for budget in budgets),
        *(
            f"{what} of trials to {100 * share:g} %"
            for share in SHARES
            for what in ("median", "90th percentile")
        ),
        "median seconds to 5%",
        "failed trials of a search",
        "own ms per trial",
    ]
    return sortable(columns, rows)


def noninferiority_table(found: Sequence[NonInferiority]) -> Markup:
    """Tabulate the results by peer and budget."""
    budgets = sorted({one.budget for one in found})
    by_pair = {(one.peer, one.budget): one for one in found}
    rows = []
    for peer in dict.fromkeys(one.peer for one in found):
        cells = [each for budget in budgets for each in _result(by_pair.get((peer, budget)))]
        rows.append(row(peer, *cells))
    heads: list[Child] = ["against"]
    for budget in budgets:
        heads += [f"after {budget}: difference", "upper bound", "p (Holm)", "standing"]
    return table(heads, rows, class_="figures")


def _result(one: NonInferiority | None) -> list[Markup]:
    if one is None or one.upper is None or one.corrected_p is None:
        return [cell()] * 4
    colour, _ = benchmark_figures.RESULT_MARKERS[one.standing]
    mark = element("span", "● ", style=f"color:{colour}")
    shown = f"{100 * one.difference:+.2f}", f"{100 * one.upper:+.2f}", f"{one.corrected_p:.3f}"
    return [*(cell(text=text) for text in shown), element("td", mark, one.standing)]
