"""Tables of a benchmark page: a row per sampler, or per peer of the reference."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.metrics.benchmark import BenchmarkRecord, NonInferiority, SamplerResult, TableBenchmark
from tuner.report import formatting, tables
from tuner.report.benchmark import figures as benchmark_figures
from tuner.report.benchmark.figures import rank_samplers
from tuner.report.markup import Child, Markup, element, table


def decisive(record: BenchmarkRecord) -> tuple[Sequence[NonInferiority], str]:
    """Decisive results and their unit: tables if several, else seeds."""
    if record.over_surfaces:
        return record.over_surfaces, "surface"
    return record.surfaces[0].noninferiority, "seed"


def summary_table(record: BenchmarkRecord) -> Markup:
    """Row per sampler, means over the tables."""
    found, _ = decisive(record)
    budgets = sorted({one.budget for one in found}) or [record.trials]
    rows = []
    for sampler in by_regret(record):
        each = [one for surface in record.surfaces if (one := surface.of(sampler)) is not None]
        if not each:
            continue
        cells: list[Child] = [_name(record, sampler)]
        for budget in budgets:
            mean = sum(one.regret.mean[budget - 1] for one in each) / len(each)
            cells.append(element("td", formatting.percent(mean), class_="number"))
        cells += [
            element("td", _medians(each, share), class_="number") for share in (0.10, 0.05, 0.03)
        ]
        own_ms = sum(one.sampler_ms for one in each) / len(each)
        cells.append(element("td", f"{formatting.number(own_ms)}", class_="number"))
        rows.append(element("tr", *cells))
    heads: list[Child] = [
        "sampler",
        *(f"mean regret after {budget}" for budget in budgets),
        *(f"trials to within {100 * share:g} %" for share in (0.10, 0.05, 0.03)),
        "own ms per trial",
    ]
    return table(heads, rows, class_="figures")


def by_regret(record: BenchmarkRecord) -> list[str]:
    """Reference, then the others by mean regret."""

    def mean(sampler: str) -> float:
        each = [one for surface in record.surfaces if (one := surface.of(sampler)) is not None]
        if not each:
            return float("inf")
        return sum(sum(one.regret.mean) for one in each) / len(each)

    return sorted(record.samplers, key=lambda name: (name != record.reference, mean(name)))


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


def _name(record: BenchmarkRecord, sampler: str) -> Markup:
    if sampler == record.reference:
        return element("td", element("strong", sampler))
    return element("td", sampler)


def sampler_table(record: BenchmarkRecord, surface: TableBenchmark) -> Markup:
    """Row per sampler, for one table."""
    budgets = sorted({one.budget for one in surface.noninferiority}) or [record.trials]
    rows = []
    for one in rank_samplers(surface, record.reference):
        cells: list[Child] = [element("td", one.sampler, data_value=one.sampler)]
        for budget in budgets:
            mean = one.regret.mean[budget - 1]
            cells.append(tables.cell(100 * mean))
        for share in (0.10, 0.05, 0.03):
            reached = one.time_to_tolerance(share)
            cells += [tables.cell(reached.median), tables.cell(reached.p90)]
        cells += [
            tables.cell(one.time_to_tolerance(0.05).median_s),
            tables.cell(one.failures),
            tables.cell(one.sampler_ms),
        ]
        rows.append(element("tr", *cells))
    columns = [
        "sampler",
        *(f"mean regret after {budget} (%)" for budget in budgets),
        *(
            f"{what} of trials to {100 * share:g} %"
            for share in (0.10, 0.05, 0.03)
            for what in ("median", "90th percentile")
        ),
        "median seconds to 5%",
        "failed trials of a search",
        "own ms per trial",
    ]
    return table([tables.sorter(column) for column in columns], rows, class_="sortable")


def noninferiority_table(found: Sequence[NonInferiority]) -> Markup:
    """Row per peer, with results by budget."""
    budgets = sorted({one.budget for one in found})
    by_pair = {(one.peer, one.budget): one for one in found}
    rows = []
    for peer in dict.fromkeys(one.peer for one in found):
        cells: list[Child] = [element("td", peer)]
        for budget in budgets:
            cells += _result(by_pair.get((peer, budget)))
        rows.append(element("tr", *cells))
    heads: list[Child] = ["against"]
    for budget in budgets:
        heads += [f"after {budget}: difference", "upper bound", "p (Holm)", "standing"]
    return table(heads, rows, class_="figures")


def _result(one: NonInferiority | None) -> list[Child]:
    if one is None or one.upper is None or one.corrected_p is None:
        return [element("td", "–", class_="number")] * 4
    colour, _ = benchmark_figures.RESULT_MARKERS[one.standing]
    mark = element("span", "● ", style=f"color:{colour}")
    return [
        element("td", f"{100 * one.difference:+.2f}", class_="number"),
        element("td", f"{100 * one.upper:+.2f}", class_="number"),
        element("td", f"{one.corrected_p:.3f}", class_="number"),
        element("td", mark, one.standing),
    ]
