"""The page of the campaign, `benchmarks/results/abuse.md`, from its ledger; pure but for what stands at the end."""

from __future__ import annotations

import pathlib
import platform
from collections.abc import Sequence

from tests.abuse.ledger import Entry, Ledger
from tests.abuse.stage import Stage

PAGE = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "abuse.md"
RUNS = 2
"""The newest ones stand on the page: both halves are to pass twice in a row, with different seeds."""
_SHOWN = 12


def rendered(runs: Sequence[Sequence[Entry]], stages: Sequence[Stage], machine: str) -> str:
    """The page.

    Args:
        runs: entries of each run, the newest run last.
        stages: all there are, in their order.
        machine: what it ran on.
    """
    parts = [
        "# The campaign of abuse",
        "Written by `make abuse`; what the stages do is in [tests/abuse](../../tests/abuse/README.md).",
        f"Machine: {machine}. The server has core 0 and 2 GiB, what abuses and what observes it core 1.",
        (
            "Worst health and echo are the slowest answers that an observer got that asks every 20 ms; the null "
            "server stands on the server's core and does nothing, so what it shows is the machine's."
        ),
    ]
    for entries in reversed(runs):
        parts += _run({entry.stage: entry for entry in entries}, stages)
    return "\n\n".join(parts) + "\n"


def _run(entries: dict[str, Entry], stages: Sequence[Stage]) -> list[str]:
    some = next(iter(entries.values()))
    passed = sum(entry.has_passed for entry in entries.values())
    missing = [stage.name for stage in stages if stage.name not in entries]
    sentence = (
        f"{sum(entry.cases for entry in entries.values()):,} cases in "
        f"{sum(entry.seconds for entry in entries.values()) / 60:.0f} minutes: "
        f"{passed} of {len(entries)} stages passed."
    )
    if missing:
        sentence += f" Not run: {', '.join(missing)}."
    head = (
        "| stage | what | cases | failed | s | worst health ms | worst echo ms | null ms | memory after MiB "
        "| at worst MiB | |"
    )
    rows = [head, "|" + "---|" * 11]
    rows += [_row(entries[stage.name]) for stage in stages if stage.name in entries]
    size = ", quick" if some.is_quick else ""
    parts = [
        f"## Seed {some.seed}, commit {some.commit}, {some.date}{size}",
        sentence,
        "\n".join(rows),
    ]
    told = [
        line for stage in stages if stage.name in entries for line in _told(entries[stage.name])
    ]
    if told:
        parts += ["\n".join(told)]
    return parts


def _row(entry: Entry) -> str:
    cells = [
        entry.stage,
        entry.title,
        f"{entry.cases:,}",
        str(entry.failures),
        f"{entry.seconds:.0f}",
        _number(entry.worst_health_ms),
        _number(entry.worst_echo_ms),
        _number(entry.worst_null_ms),
        _number(entry.growth_mib, "+.0f"),
        _number(entry.peak_mib, "+.0f"),
        "passed" if entry.has_passed else "**failed**",
    ]
    return "| " + " | ".join(cells) + " |"


def _told(entry: Entry) -> list[str]:
    lines = [f"- {entry.stage}: {_plain(text)}" for text in (*entry.notes, *entry.broken)]
    failed = list(entry.failed.items())
    lines += [f"- {entry.stage} `{_plain(name)}`: {_plain(text)}" for name, text in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"- {entry.stage}: and {entry.failures - _SHOWN} more")
    return lines


def _plain(text: str) -> str:
    """One line that is nothing but text to Markdown."""
    line = " ".join(text.split())
    for mark in "\\`|<>*_[]":
        line = line.replace(mark, f"\\{mark}" if mark != "`" else "'")
    return line[:300]


def _number(value: float | None, form: str = ".0f") -> str:
    return "-" if value is None else format(value, form)


def write(ledger: Ledger, stages: Sequence[Stage], path: pathlib.Path = PAGE) -> None:
    """Write the page of the newest whole runs; quick ones only where there are no others."""
    keys = ledger.runs()
    chosen = [key for key in keys if not key[2]] or list(keys)
    runs = [
        list(ledger.done(seed=seed, commit=commit, is_quick=is_quick).values())
        for seed, commit, is_quick in chosen[-RUNS:]
    ]
    if runs:
        path.write_text(rendered(runs, stages, _machine()), encoding="utf-8")


def _machine() -> str:
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, Linux {platform.release()}, Python {platform.python_version()}"
